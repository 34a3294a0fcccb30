//! One pod: its manifest, its policy file or arguments, and the checks inside its network namespace.

pub mod cgroups;
pub mod enablement;
pub mod init_args;
pub mod manifest;
pub mod own_namespace;
pub mod policy_file;
pub mod proxy;
pub mod validation;
