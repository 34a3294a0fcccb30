//! DEL: nothing to do, and nothing that could fail.
//!
//! The rules live in the pod's namespace and die with it. Runtimes send DEL two to five times,
//! without a namespace, without prevResult, for pods never added; a DEL that fails keeps a pod
//! Terminating for ever (spec `runtimes.md`). So none of our keys is read here.

use crate::reply::Reply;
use crate::request::Request;

pub(crate) fn del(_request: &Request) -> Reply {
    Reply::Nothing
}
