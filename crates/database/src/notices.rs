//! Hints between the processes of one database.

/// A hint. It may be lost, which costs time only: each beat polls what hints speed up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    /// What it is about: `gone`, `slot`, `lane`, `q`, `cache`.
    pub channel: &'static str,
    /// Ids only.
    pub payload: String,
}

/// Sends and hears hints.
#[derive(Debug, Clone)]
pub struct Notices(());

impl Notices {
    /// Within this process only.
    pub(crate) fn local() -> Self {
        Self(())
    }
}
