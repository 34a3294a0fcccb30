//! A page as text, with HTTP's number for it.

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    /// HTTP's status.
    pub(crate) status: u16,
    /// Its media type.
    pub(crate) media: &'static str,
    /// The text.
    pub(crate) text: String,
}

/// Prometheus' text format, version 0.0.4.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

impl Page {
    pub(crate) fn good(text: impl Into<String>) -> Self {
        Self { status: 200, media: TEXT, text: text.into() }
    }

    pub(crate) fn bad(text: impl Into<String>) -> Self {
        Self { status: 503, media: TEXT, text: text.into() }
    }

    pub(crate) fn metrics(text: String) -> Self {
        Self { status: 200, media: METRICS, text }
    }

    pub(crate) fn unknown() -> Self {
        Self { status: 404, media: TEXT, text: "there is nothing here\n".to_owned() }
    }

    pub(crate) fn not_so() -> Self {
        Self { status: 405, media: TEXT, text: "only GET\n".to_owned() }
    }
}
