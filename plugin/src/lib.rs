//! The CNI plugin `gybe-cni`, and the decisions the operator's command line shares with it.
//!
//! ```text
//! env + stdin ─► request ─┬─ conf ─────────────────────────────┐
//!                         └─ args ─► facts ─► pod              │
//!                                              ▼               ▼
//!               gates + annotations + families = decide ─► leave alone ──► prevResult, exit 0
//!                                              ├─────────► refuse ───────► CNI error, exit 1
//!                                              └─────────► redirect ─► netfilter, in the pod's
//!                                                                      namespace ─► prevResult
//! ```
//!
//! What reads bytes, decides or renders is pure. What acts is few: `stdin` by `intake` and `reply` (the
//! runtime's pipe), `facts` (files, sockets, a program), `wanted` (the pod's namespace), `loopback`
//! (another plugin there), `backend` by `probe_cache` (what works on this node), and `log`. A verb's file
//! calls both. What redirecting means to the kernel is not known here.

mod add;
pub mod annotations;
pub mod args;
pub mod backend;
pub mod call;
mod check;
pub mod conf;
pub mod decide;
mod del;
pub mod error;
pub mod facts;
pub mod families;
pub mod gates;
pub mod gc;
pub mod intake;
mod log;
mod loopback;
pub mod network;
pub mod pod;
pub mod probe_cache;
pub mod probed;
pub mod reply;
pub mod request;
pub mod result;
mod status;
pub mod stdin;
pub mod version;
mod wanted;

pub use log::timestamp;
