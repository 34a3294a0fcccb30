//! Wakes the loop when something in a directory may have changed. The next observation finds out what.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::stat::stat;

/// The polling interval while inotify is exhausted or a directory is missing.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A watch of several directories. Only completely written files wake the loop.
#[derive(Debug)]
pub struct DirectoryWatch {
    paths: WatchedDirectories,
    watches: Watches,
}

/// The directories of a watch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WatchedDirectories {
    /// Files in them may also be written in place.
    pub written: Vec<PathBuf>,
    /// Files in them are replaced by rename, and only a rename wakes the loop: its own failed writes, as on a full disk,
    /// do not.
    pub renamed: Vec<PathBuf>,
}

impl WatchedDirectories {
    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.renamed.iter().chain(&self.written)
    }
}

/// The inotify watches of the directories.
#[derive(Debug)]
struct Watches {
    inotify: Option<Inotify>,
    identities: Vec<PathIdentity>,
    mode: WatchMode,
}

/// Device and inode of the directory; none if it does not exist.
type PathIdentity = Option<(u64, u64)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchMode {
    /// inotify reports changes at once.
    Inotify,
    /// inotify cannot be used, for this reason: the loop observes every second.
    Polling(Errno),
}

/// Why `wait` returned. It carries no data: observing again is cheap and never out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WakeReason {
    /// Something changed, or may have changed.
    Changed,
    TimedOut,
    /// The other descriptor is readable.
    Readable,
}

impl DirectoryWatch {
    /// Starts watching these directories, in which files may be written in place.
    #[must_use]
    pub fn new(written: impl IntoIterator<Item = PathBuf>) -> Self {
        Self::of(WatchedDirectories { written: written.into_iter().collect(), renamed: Vec::new() })
    }

    /// Starts watching. Observe once after this call, then wait: no change in between is missed.
    #[must_use]
    pub fn of(paths: WatchedDirectories) -> Self {
        let watches = Watches::now(&paths);
        Self { paths, watches }
    }

    #[must_use]
    pub fn mode(&self) -> WatchMode {
        self.watches.mode
    }

    /// Watches these directories from now on, and reports whether they differ from those before. If so, observe
    /// after this call: earlier changes are not reported.
    pub fn set_paths(&mut self, paths: WatchedDirectories) -> bool {
        let is_another = self.paths != paths;
        if is_another {
            self.paths = paths;
            self.renew();
        }
        is_another
    }

    /// Waits for a change, until `descriptor` is readable, or until the time is up.
    pub fn wait(&mut self, at_most: Duration, descriptor: Option<BorrowedFd<'_>>) -> WakeReason {
        let until = Instant::now() + at_most;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let polls = self.watches.mode != WatchMode::Inotify;
            match self.watches.wait(if polls { left.min(POLL_INTERVAL) } else { left }, descriptor) {
                Wake::Descriptor => return WakeReason::Readable,
                Wake::Event => {
                    self.renew_if_needed();
                    return WakeReason::Changed;
                }
                Wake::Timeout if polls => {
                    self.renew_if_needed();
                    return WakeReason::Changed;
                }
                Wake::Timeout if left.is_zero() => return WakeReason::TimedOut,
                Wake::Timeout => {}
            }
        }
    }

    /// Renews the watch if needed. A watch belongs to an inode: a directory that was made again, or another
    /// link target, needs a new one.
    fn renew_if_needed(&mut self) {
        if self.watches.mode == WatchMode::Inotify && self.watches.identities == identities(&self.paths) {
            return;
        }
        self.renew();
    }

    fn renew(&mut self) {
        // Close the old instance first: the number of instances is limited.
        self.watches.inotify = None;
        self.watches = Watches::now(&self.paths);
    }
}

/// What ended a wait.
enum Wake {
    Timeout,
    Event,
    Descriptor,
}

impl Watches {
    fn now(paths: &WatchedDirectories) -> Self {
        let made = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        let result = match &made {
            Ok(inotify) => add(inotify, paths),
            Err(why) => Err(*why),
        };
        // Compared after the watches are set: later changes are reported.
        let identities = identities(paths);
        let mode = match result {
            Ok(()) if identities.iter().all(Option::is_some) => WatchMode::Inotify,
            Ok(()) => WatchMode::Polling(Errno::ENOENT),
            Err(why) => WatchMode::Polling(why),
        };
        Self { inotify: made.ok(), identities, mode }
    }

    fn wait(&self, at_most: Duration, descriptor: Option<BorrowedFd<'_>>) -> Wake {
        let mut fds: Vec<PollFd<'_>> =
            descriptor.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let descriptors = fds.len();
        fds.extend(self.inotify.iter().map(|inotify| PollFd::new(inotify.as_fd(), PollFlags::POLLIN)));
        let timeout = PollTimeout::try_from(at_most).unwrap_or(PollTimeout::MAX);
        // EINTR counts as an early wake-up; the caller loops.
        let _ = poll(&mut fds, timeout);
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        if ready.iter().take(descriptors).any(|ready| *ready) {
            Wake::Descriptor
        } else if ready.iter().skip(descriptors).any(|ready| *ready) {
            self.drain();
            Wake::Event
        } else {
            Wake::Timeout
        }
    }

    /// Discards the queued events: any number of them is one reason to observe.
    fn drain(&self) {
        while self
            .inotify
            .as_ref()
            .is_some_and(|inotify| inotify.read_events().is_ok_and(|it| !it.is_empty()))
        {}
    }
}

/// Watches each directory, and its parent, in which a removed directory, or a link to it, reappears. One
/// directory may be both, and a second watch on an inode replaces the first.
fn add(inotify: &Inotify, paths: &WatchedDirectories) -> Result<(), Errno> {
    let names = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_MOVED_FROM
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR;
    let whole_files = names | AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_ATTRIB;
    let moved = AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_ONLYDIR;
    let renamed = paths.renamed.iter().map(|path| (path.as_path(), moved));
    let above = paths.all().filter_map(|path| Some((path.parent()?, names)));
    let written = paths.written.iter().map(|path| (path.as_path(), whole_files));
    let all = renamed.chain(above).chain(written);
    // The wider mask last: a directory that is listed twice keeps it.
    for (path, flags) in all {
        match inotify.add_watch(path, flags) {
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

fn identities(paths: &WatchedDirectories) -> Vec<PathIdentity> {
    paths.all().map(|path| stat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))).collect()
}
