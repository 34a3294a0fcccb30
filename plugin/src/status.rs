//! STATUS: would ADD work on this node?
//!
//! It judges the node, never the agent: a failing STATUS keeps every pod, and so the agent itself,
//! from starting.

use crate::reply::Reply;
use crate::request::Request;

pub(crate) fn status(_request: &Request) -> Reply {
    Reply::Nothing
}
