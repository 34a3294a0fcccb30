//! A plugin stopped in the middle of its work, for as long as a test wants; not which plugin.

use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Stage, Trouble};

/// Longer than a sandbox takes to come to its network.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket a plugin connects to before it goes on.
#[derive(Debug)]
pub struct Hold(UnixListener);

impl Hold {
    /// Listens on a path inside the stage.
    pub fn at(stage: &Stage, inside: &str) -> Result<Hold, Trouble> {
        let path = stage.path(Path::new(inside));
        let listener = UnixListener::bind(&path);
        Ok(Hold(listener.map_err(Trouble::file(path))?))
    }

    /// Returns when the plugin has come: it waits until the connection is answered or closed.
    pub fn wait(&self) -> Result<UnixStream, Trouble> {
        let mut awaited = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
        match poll(&mut awaited, timeout) {
            Ok(0) => Err(Trouble::Late { what: "the plugin's coming", within: PATIENCE }),
            Ok(_) => Ok(self.0.accept().map_err(Trouble::file("accept"))?.0),
            Err(errno) => Err(Trouble::file("poll")(errno.into())),
        }
    }
}
