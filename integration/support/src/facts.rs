//! The facts socket, used as the plugin uses it.

use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A request about a pod, without a deadline.
#[must_use]
pub fn request(namespace: &str, name: &str, uid: &str) -> Value {
    json!({ "version": 1, "namespace": namespace, "name": name, "uid": uid })
}

/// Sends a request and returns the reply.
#[must_use]
pub fn query(socket: &Path, request: &Value) -> Value {
    let reply = send(socket, format!("{request}\n").as_bytes());
    serde_json::from_str(&reply).unwrap_or_else(|error| panic!("{request}: {error}: {reply:?}"))
}

/// Sends bytes and returns what comes back until the agent closes the connection; nothing if it closes at once.
#[must_use]
pub fn send(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(bytes).unwrap();
    let mut reply = String::new();
    // The agent may close a connection before it has read all of it, which is a reset on this side.
    let _ = stream.read_to_string(&mut reply);
    reply
}
