//! The CNI plugin `gybe-cni`.
pub mod annotations;
pub mod args;
pub mod conf;
pub mod decide;
pub mod facts;
pub mod families;
pub mod gates;
pub mod network;
pub mod pod;
pub mod request;
pub mod result;
pub mod version;
