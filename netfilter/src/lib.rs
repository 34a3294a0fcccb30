pub mod backend;
pub mod nft;
pub mod policy;
pub mod ruleset;
mod netlink;
