//! Which conf: the primary's how-manieth, and whether Gybe is in it.

use serde_json::Value;

use gybe_containerd_tests::chain::NTH;

/// A conflist. Each follows from the one before it: the primary writes, then Gybe is put into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct State {
    /// The primary's how-manieth.
    pub(crate) nth: u64,
    /// Whether Gybe is in it.
    pub(crate) gybe: bool,
}

impl State {
    pub(crate) fn of(conflist: &Value) -> State {
        let plugins = conflist["plugins"].as_array().unwrap();
        State {
            nth: conflist[NTH].as_u64().unwrap(),
            gybe: plugins.iter().any(|plugin| plugin["type"] == "gybe-cni"),
        }
    }
}
