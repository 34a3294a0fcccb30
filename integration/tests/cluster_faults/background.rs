//! Background events during ADDs: restarts of the agent, rotation of tokens.

use crate::node::{TestNode, start_agent};
use gybe_api_server::Validity;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The number of background events so far.
pub(crate) type Times = AtomicUsize;

/// Runs `work` while the agent restarts in a loop. Each agent runs until it has listed, and for one pause more; then
/// it is killed, and the next one starts after a pause.
pub(crate) fn restarting<T>(node: &TestNode, work: impl FnOnce(&Times) -> T) -> T {
    repeat_during(work, |pause| {
        let before = node.watches();
        let agent = start_agent(&node.directory, &node.server);
        node.wait_for_watch(before);
        pause.wait(Duration::from_millis(300));
        drop(agent);
        pause.wait(Duration::from_millis(50));
    })
}

/// Runs `work` while the token rotates in a loop; the agent uses each token.
pub(crate) fn rotating<T>(node: &TestNode, work: impl FnOnce(&Times) -> T) -> T {
    let mut token = node.server.tokens().issue(Validity::Valid);
    repeat_during(work, |pause| {
        token = node.rotate(&token);
        // A watch that began during the rotation has the last token, and would keep it for minutes.
        while !node.is_used(&token, Duration::from_millis(50)) && !pause.is_over() {
            node.server.cut_watches();
        }
    })
}

struct Pause(Receiver<()>);

impl Pause {
    /// Waits for this time, or until `work` has ended.
    fn wait(&self, moment: Duration) {
        let _ = self.0.recv_timeout(moment);
    }

    fn is_over(&self) -> bool {
        self.0.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Ends the wait for a number of events when the loop has ended and no more can come.
struct NoMoreEvents<'a>(&'a Times);

impl Drop for NoMoreEvents<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }
}

fn repeat_during<T>(work: impl FnOnce(&Times) -> T, mut event: impl FnMut(&Pause) + Send) -> T {
    let (times, (stop, stopped)) = (&Times::new(0), channel());
    thread::scope(|scope| {
        let pause = Pause(stopped);
        scope.spawn(move || {
            let _guard = NoMoreEvents(times);
            while !pause.is_over() {
                event(&pause);
                times.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Stops the loop also if `work` panics, because the scope waits for the loop's thread.
        let _stops = stop;
        work(times)
    })
}
