//! What a runtime called the recorder with, read back in order; the recorder itself is a program.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Trouble;

/// The recorder's name as a plugin.
pub const RECORDER: &str = "gybe-recorder";
/// Where it writes, inside the stage.
pub const DIRECTORY: &str = "/run/gybe/calls";

/// One call of a plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The environment and the standard input, as the recorder wrote them.
    recorded: Value,
}

impl Call {
    /// The calls so far, oldest first: the files' names begin with the time.
    pub fn all_in(directory: &Path) -> Result<Vec<Call>, Trouble> {
        let mut files = Vec::new();
        for entry in fs::read_dir(directory).map_err(Trouble::file(directory))? {
            files.push(entry.map_err(Trouble::file(directory))?.path());
        }
        files.retain(|path| path.extension().is_some_and(|suffix| suffix == "json"));
        files.sort();
        files.iter().map(|path| Call::read(path)).collect()
    }

    fn read(path: &Path) -> Result<Call, Trouble> {
        let text = fs::read(path).map_err(Trouble::file(path))?;
        match serde_json::from_slice(&text) {
            Ok(recorded) => Ok(Call { recorded }),
            Err(source) => Err(Trouble::Recording { path: path.to_path_buf(), source }),
        }
    }

    /// CNI_COMMAND.
    pub fn verb(&self) -> &str {
        self.variable("CNI_COMMAND")
    }

    /// A variable of the environment; empty when it was not set.
    pub fn variable(&self, name: &str) -> &str {
        self.text(&format!("/env/{name}"))
    }

    /// One pair of CNI_ARGS; they come in any order.
    pub fn argument(&self, name: &str) -> Option<&str> {
        let pairs = self.variable("CNI_ARGS").split(';');
        let mut named = pairs.filter_map(|pair| pair.split_once('='));
        named.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The standard input at a JSON pointer; null when nothing is there.
    pub fn stdin(&self, pointer: &str) -> &Value {
        let found = self.recorded.get("stdin").and_then(|v| v.pointer(pointer));
        found.unwrap_or(&Value::Null)
    }

    fn text(&self, pointer: &str) -> &str {
        let found = self.recorded.pointer(pointer);
        found.and_then(Value::as_str).unwrap_or_default()
    }
}
