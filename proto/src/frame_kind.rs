//! What runs a frame: the values of the OpenTelemetry attribute `profile.frame.type`, and two of our own.

/// The kind of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameKind {
    /// Native code (C, C++, Rust, assembly).
    Native,
    /// Kernel code.
    Kernel,
    /// Go.
    Go,
    /// Rust, where a sender says so.
    Rust,
    /// `CPython`.
    Python,
    /// A JVM language.
    Jvm,
    /// V8 JavaScript.
    V8,
    /// Ruby.
    Ruby,
    /// PHP.
    Php,
    /// Perl.
    Perl,
    /// .NET.
    Dotnet,
    /// BEAM.
    Beam,
    /// `LuaJIT`.
    Luajit,
    /// Code that a program made while it ran, of a compiler that is not told.
    Jit,
    /// Not code: `[truncated]`, `[unwind: reason]`, a sender's abort marker.
    Marker,
    /// The sender did not say.
    Unknown,
}

impl FrameKind {
    /// Every kind, in a fixed order (its position is stored; append only).
    pub const ALL: [Self; 16] = [
        Self::Unknown,
        Self::Native,
        Self::Kernel,
        Self::Go,
        Self::Rust,
        Self::Python,
        Self::Jvm,
        Self::V8,
        Self::Ruby,
        Self::Php,
        Self::Perl,
        Self::Dotnet,
        Self::Beam,
        Self::Luajit,
        Self::Marker,
        Self::Jit,
    ];

    /// The value on the wire and in our API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kernel => "kernel",
            Self::Go => "go",
            Self::Rust => "rust",
            Self::Python => "cpython",
            Self::Jvm => "jvm",
            Self::V8 => "v8js",
            Self::Ruby => "ruby",
            Self::Php => "php",
            Self::Perl => "perl",
            Self::Dotnet => "dotnet",
            Self::Beam => "beam",
            Self::Luajit => "luajit",
            Self::Jit => "jit",
            Self::Marker => "abort-marker",
            Self::Unknown => "unknown",
        }
    }

    /// The kind with this wire value; anything else is [`FrameKind::Unknown`].
    #[must_use]
    pub fn from_wire(value: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.as_str() == value).unwrap_or(Self::Unknown)
    }
}
