//! DEL: nothing to do.
//!
//! The rules live in the pod's namespace and die with it. Runtimes send DEL two to five times,
//! without a namespace, without prevResult, for pods never added; a DEL that fails keeps a pod
//! Terminating for ever (docs/RULES.md, section 6). So no key of ours can make it fail: logging reads some
//! and refuses none. What makes it fail is a call that is none by the protocol, with a variable
//! missing, an entry that is no JSON or has no name, or a version that is none (001 to 008).

use crate::reply::Reply;
use crate::request::Request;

pub(crate) fn del(_request: &Request) -> Reply {
    Reply::Nothing
}
