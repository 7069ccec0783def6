//! Figures and how they are printed.

/// One measured number.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit }
    }
}

/// Prints each figure, beside the peer's of the same name if there is one.
#[expect(clippy::print_stdout, reason = "figures are the output")]
pub(crate) fn print(own: &[Figure], peer: &[Figure], json: bool) {
    for Figure { name, value, unit } in own {
        let other = peer.iter().find(|it| it.name == *name).map(|it| it.value);
        let ratio = other.map(|other| value / other).filter(|ratio| ratio.is_finite());
        if json {
            let mut line = serde_json::json!({"figure": name, "value": value, "unit": unit});
            if let Some(other) = other {
                line["peer"] = other.into();
                line["ratio"] = ratio.into();
            }
            println!("{line}");
            continue;
        }
        let beside = match (other, ratio) {
            (Some(other), Some(ratio)) => format!("   peer {}, ratio {ratio:.2}", shown(other)),
            (Some(other), None) => format!("   peer {}", shown(other)),
            _ => String::new(),
        };
        println!("{name:<32} {:>16} {unit}{beside}", shown(*value));
    }
}

/// Four significant digits, or the whole number.
fn shown(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.5}"),
    }
}
