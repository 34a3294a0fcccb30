//! A node agent that answers for the example pod and runs until the value is dropped.

use crate::pod::{CniCall, RUN};
use crate::programs::{built_program, command};
use gybe_integration::failure::Failure;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;

/// A running agent.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    socket: PathBuf,
}

impl Agent {
    /// Starts an agent that answers for the pods of this call.
    ///
    /// # Errors
    /// When it does not serve.
    pub fn start(call: &CniCall) -> Result<Self, Failure> {
        let socket = Path::new(RUN).join("gybe-bench/facts.sock");
        let mut command = command(&built_program("gybe")?);
        command.arg("node").arg("--pods-from").arg(call.pods()).arg("--socket").arg(&socket);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let stderr = child.stderr.take();
        let agent = Self { child, socket };
        let mut stderr = BufReader::new(stderr.ok_or_else(|| Failure::new("gybe node has no stderr"))?);
        let mut first = String::new();
        stderr.read_line(&mut first)?;
        if !first.contains("serving") {
            return Err(Failure::new(format!("gybe node: {first}")));
        }
        // The agent logs a line for each call of the plugin; reading them keeps the pipe from filling up.
        thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
        Ok(agent)
    }

    /// The facts socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
