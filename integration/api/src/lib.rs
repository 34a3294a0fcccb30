//! A Kubernetes API server for tests: serves the pods of a cluster of any size over TLS, with the delays and faults
//! that a test sets. Its responses are made from recorded responses of real servers.
//!
//! ```no_run
//! # use gybe_api_server::{ApiServer, Fault, Network, FaultKind, Validity, Verb};
//! # use std::path::Path;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = ApiServer::start()?;
//! let account = server.service_account(Path::new("/tmp/here/serviceaccount"))?;
//! server.put_pod(serde_json::json!({ "metadata": { "namespace": "shop", "name": "cart-0" } }));
//! server.add_fault(Fault::always(FaultKind::TooManyRequests(1)).at(Verb::Watch).times(3));
//! server.set_network(Network::Unreachable)?;
//! account.write(&server.tokens().issue(Validity::NotYetValid))?;
//! assert!(server.requests().is_empty());
//! # Ok(())
//! # }
//! ```

mod credentials;
mod network;
mod objects;
mod request;
mod response;
mod server;
mod service;
mod watch;

pub use credentials::{Bearer, SERVICE_ACCOUNT, ServiceAccount, TlsError, Token, Tokens, Validity};
pub use network::{Fault, FaultKind, Network};
pub use request::{Request, Verb};
pub use server::{ApiServer, ApiServerError};
