//! What each command does. The only place, with `main`, where errors are plain text.

pub(crate) mod doctor;
pub(crate) mod hold;
pub(crate) mod privilege;
pub(crate) mod record;
pub(crate) mod run;
mod sampling;
