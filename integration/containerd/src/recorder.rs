//! The recorder plugin as a test uses it: its recorded calls, and points at which it pauses. The plugin itself is
//! `bin/gybe-recorder.rs`.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::{HarnessError, SimulatedHost};

/// The plugin's name.
pub const PLUGIN: &str = "gybe-recorder";
/// The directory of the recorded calls on the test node.
pub const DIRECTORY: &str = "/run/gybe/calls";

/// Longer than a runtime takes to call the plugin for a new sandbox.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// One call of the plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedCall {
    /// The environment and the standard input, as the recorder wrote them.
    recorded: Value,
}

impl RecordedCall {
    /// Reads the calls in a directory, oldest first: the files' names begin with the time.
    pub fn read_all(directory: &Path) -> Result<Vec<RecordedCall>, HarnessError> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory).map_err(HarnessError::file(directory))? {
            files.push(entry.map_err(HarnessError::file(directory))?.path());
        }
        files.retain(|path| path.extension().is_some_and(|suffix| suffix == "json"));
        files.sort();
        files.iter().map(|path| RecordedCall::read(path)).collect()
    }

    fn read(path: &Path) -> Result<RecordedCall, HarnessError> {
        let text = fs::read(path).map_err(HarnessError::file(path))?;
        match serde_json::from_slice(&text) {
            Ok(recorded) => Ok(RecordedCall { recorded }),
            Err(source) => Err(HarnessError::RecordedCall { path: path.to_path_buf(), source }),
        }
    }

    /// `CNI_COMMAND`.
    pub fn command(&self) -> &str {
        self.variable("CNI_COMMAND")
    }

    /// A variable of the environment; empty when it was not set.
    pub fn variable(&self, name: &str) -> &str {
        let value = self.recorded.pointer(&format!("/env/{name}"));
        value.and_then(Value::as_str).unwrap_or_default()
    }

    /// The value of a key of `CNI_ARGS`, whose pairs come in any order.
    pub fn argument(&self, name: &str) -> Option<&str> {
        let mut pairs = self.variable("CNI_ARGS").split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// A value of the standard input by its JSON pointer; null when it is absent.
    pub fn stdin(&self, pointer: &str) -> &Value {
        self.recorded.get("stdin").and_then(|input| input.pointer(pointer)).unwrap_or(&Value::Null)
    }
}

/// The socket at which a recorder with the key `pause_at` waits before it continues its ADD.
#[derive(Debug)]
pub struct PausePoint(UnixListener);

impl PausePoint {
    /// Listens at a path on the test node.
    pub fn listen(host: &SimulatedHost, path: &str) -> Result<PausePoint, HarnessError> {
        let path = host.path(path);
        let listener = UnixListener::bind(&path);
        Ok(PausePoint(listener.map_err(HarnessError::file(path))?))
    }

    /// Waits until a plugin pauses. It continues when the returned connection is closed or shut down for writing.
    pub fn wait(&self) -> Result<UnixStream, HarnessError> {
        let mut descriptors = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(CALL_TIMEOUT).unwrap_or(PollTimeout::MAX);
        match poll(&mut descriptors, timeout) {
            Ok(0) => Err(HarnessError::Timeout { what: "the plugin's connection", within: CALL_TIMEOUT }),
            Ok(_) => Ok(self.0.accept().map_err(HarnessError::file("accept"))?.0),
            Err(errno) => Err(HarnessError::file("poll")(errno.into())),
        }
    }
}
