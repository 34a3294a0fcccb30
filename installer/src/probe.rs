//! The probe's view of a node: the backend in use, the host's mount namespace in which a probe runs, and the
//! capabilities that it needs. The probe itself is in `gybe_netfilter`; the loop that repeats it is in
//! `agent::probe_loop`.

mod capabilities;
pub mod host_mounts;
pub mod node_backend;

pub use capabilities::{MissingCapabilities, NEEDED, check};
