//! The readers of a node's files and of ztunnel's messages, without the rest of `gybe`, whose clients of clusters are 170 crates.

#[path = "../../../installer/src/host"]
pub mod host {
    pub mod conflist;
    pub mod json;
    pub mod observe {
        mod file_name;
        pub mod result_cache;
        pub use file_name::{FileFormat, FileName};
    }
    pub mod runtimes {
        pub mod config;
    }
}

#[path = "../../../installer/src/agent"]
pub mod agent {
    pub mod ztunnel {
        #[allow(dead_code, reason = "only what is received is fuzzed")]
        pub mod messages;
    }
}
