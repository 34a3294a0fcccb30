//! The readers of a node's files, without the rest of `gybe`, whose clients of clusters are 170 crates.

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
