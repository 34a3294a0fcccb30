//! A node agent of the built `gybe`, for as long as the value lives: it knows the example's pod.

use crate::pod::Call;
use crate::programs::{command, ours};
use crate::seclusion::PLACE;
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
    /// Starts one that knows the pods of this call.
    ///
    /// # Errors
    /// When it does not come to serving.
    pub fn start(call: &Call) -> Result<Self, Failure> {
        let socket = Path::new(PLACE).join("gybe-bench/facts.sock");
        let mut command = command(&ours("gybe")?);
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
        // It prints a line for each call of the plugin's: they are read, as a node's journal would.
        thread::spawn(move || io::copy(&mut stderr, &mut io::sink()));
        Ok(agent)
    }

    /// Where it answers.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}
