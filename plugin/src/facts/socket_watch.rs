//! The wait for a unix socket that is away: until its file, or a directory above it, is created or renamed.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time between two attempts to connect. inotify does not report listen(2) on a file that exists, and a
/// user may have only so many instances (fs.inotify.max_user_instances, 128 by default), each waiting ADD one.
const INTERVAL: Duration = Duration::from_millis(100);

/// A directory that is removed must be awaited in its parent.
const EVENTS: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// A watch on the directory of a socket, or on the nearest directory above it that exists.
pub(super) struct SocketWatch<'a> {
    socket: &'a Path,
    /// None when the kernel gives no instance: then [`INTERVAL`] alone ends a wait.
    inotify: Option<Inotify>,
}

impl<'a> SocketWatch<'a> {
    /// Starts to watch. A caller that tries to connect afterwards misses no change.
    pub(super) fn start(socket: &'a Path) -> Self {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        let watch = Self { socket, inotify: Inotify::init(flags).ok() };
        watch.add();
        watch
    }

    /// Watches the nearest directory that exists by now. The kernel ignores a second watch on a directory.
    fn add(&self) {
        if let Some(inotify) = &self.inotify {
            let mut above = self.socket.ancestors().skip(1);
            above.find(|directory| inotify.add_watch(*directory, EVENTS).is_ok());
        }
    }

    /// Waits for a change, for [`INTERVAL`] at most. Returns whether the deadline is still to come.
    pub(super) fn wait(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now()).min(INTERVAL);
        // poll(2) counts whole milliseconds.
        let timeout = left + Duration::from_millis(1);
        let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO);
        let mut changes: Vec<_> =
            self.inotify.iter().map(|inotify| PollFd::new(inotify.as_fd(), PollFlags::POLLIN)).collect();
        // An interrupted wait only makes the next attempt come earlier.
        let _ = poll(&mut changes, timeout);
        // The events carry nothing that the next attempt does not show.
        while self.inotify.as_ref().is_some_and(|inotify| inotify.read_events().is_ok()) {}
        self.add();
        Instant::now() < deadline
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gybe_test_support::TestDir;
    use std::fs;

    #[test]
    fn a_directory_is_awaited_in_the_nearest_one_above_it_and_then_watched_itself() {
        let root = TestDir::new("watch-above");
        let socket = root.join("run/gybe/facts.sock");
        let watch = SocketWatch::start(&socket);
        let events = || watch.inotify.as_ref().unwrap().read_events().map_or(0, |events| events.len());
        for path in ["run", "run/gybe", "run/gybe/facts.sock"] {
            assert_eq!(events(), 0, "before {path}");
            match path.ends_with(".sock") {
                true => fs::write(root.join(path), "").unwrap(),
                false => fs::create_dir(root.join(path)).unwrap(),
            }
            assert_eq!(events(), 1, "{path}");
            watch.add();
        }
    }

    #[test]
    fn without_an_instance_of_inotify_a_wait_takes_the_interval() {
        let root = TestDir::new("watch-none");
        let socket = root.join("facts.sock");
        let watch = SocketWatch { socket: &socket, inotify: None };
        let before = Instant::now();
        assert!(watch.wait(before + Duration::from_secs(3600)));
        assert!(before.elapsed() >= INTERVAL);
    }

    #[test]
    fn a_wait_without_a_change_ends_at_the_deadline() {
        let root = TestDir::new("watch-deadline");
        let socket = root.join("facts.sock");
        let watch = SocketWatch::start(&socket);
        let deadline = Instant::now() + Duration::from_millis(20);
        assert!(!watch.wait(deadline));
        assert!(Instant::now() >= deadline);
    }
}
