//! GC: nothing is kept outside the pods' namespaces, so nothing can be left over.

use crate::reply::Reply;
use crate::request::Request;
use serde_json::Value;

/// A list of attachments that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cni.dev/valid-attachments must be a list of {{\"containerID\": …, \"ifname\": …}}")]
pub struct AttachmentsError;

/// Answers GC.
///
/// # Errors
/// When the list of what is still valid is no list: somebody who cleans up by it would do harm.
pub(crate) fn gc(request: &Request) -> Result<Reply, AttachmentsError> {
    // An empty list is sent as null (docs/RULES.md, section 6).
    let valid = match request.network.member("cni.dev/valid-attachments") {
        None => true,
        Some(list) => list.as_array().is_some_and(|list| list.iter().all(is_attachment)),
    };
    if valid { Ok(Reply::Nothing) } else { Err(AttachmentsError) }
}

fn is_attachment(item: &Value) -> bool {
    let text = |key| item.get(key).is_none_or(|value| value.is_string() || value.is_null());
    (item.is_object() && text("containerID") && text("ifname")) || item.is_null()
}
