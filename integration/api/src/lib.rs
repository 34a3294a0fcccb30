//! An API server for tests: pods of a cluster of any size, over TLS, as slow and as broken as a test
//! wants it. What it answers is made from the recorded answers of real servers.
//!
//! ```no_run
//! # use gybe_api_server::{ApiServer, Fault, Network, Trouble, Validity, Verb};
//! # use std::path::Path;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = ApiServer::start()?;
//! let account = server.service_account(Path::new("/tmp/here/serviceaccount"))?;
//! server.put_pod(serde_json::json!({ "metadata": { "namespace": "shop", "name": "cart-0" } }));
//! server.fault(Fault::always(Trouble::TooManyRequests(1)).at(Verb::Watch).times(3));
//! server.network(Network::Unreachable)?;
//! account.write(&server.tokens().issue(Validity::InTwoDays))?;
//! assert!(server.requests().is_empty());
//! # Ok(())
//! # }
//! ```

mod answer;
mod contents;
mod credentials;
mod crowd;
mod faults;
mod knobs;
mod list;
mod network;
mod objects;
mod recorded;
mod requests;
mod resource;
mod selector;
mod server;
mod service;
mod tls;
mod tokens;
mod validity;
mod watch;
mod wish;

pub use credentials::ServiceAccount;
pub use faults::{Fault, Trouble};
pub use network::Network;
pub use requests::Request;
pub use server::{ApiServer, ApiServerError};
pub use tls::TlsError;
pub use tokens::{Bearer, SERVICE_ACCOUNT, Token, Tokens};
pub use validity::Validity;
pub use wish::Verb;
