//! What goes on while ADDs are made: the agent restarts, tokens rotate.

use crate::agent::Agent;
use crate::site::Site;
use gybe_api_server::Validity;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How often something happened so far.
pub(crate) type Times = AtomicUsize;

/// Does `work` while the agent is started again and again. Each lives until it has seen the cluster, and
/// for a moment more; then it is killed, and away for another.
pub(crate) fn restarting<T>(site: &Site, work: impl FnOnce(&Times) -> T) -> T {
    again_and_again(work, |pause| {
        let before = site.watches();
        let agent = Agent::start(&site.place, &site.server);
        site.see_a_watch(before);
        pause.wait(Duration::from_millis(300));
        agent.kill();
        pause.wait(Duration::from_millis(50));
    })
}

/// Does `work` while one token comes after the other, and each is used.
pub(crate) fn rotating<T>(site: &Site, work: impl FnOnce(&Times) -> T) -> T {
    let mut token = site.server.tokens().issue(Validity::Valid);
    again_and_again(work, |pause| {
        token = site.rotate(&token);
        while !site.sees_used(&token, Duration::from_millis(50)) && !pause.is_over() {}
    })
}

struct Pause(Receiver<()>);

impl Pause {
    /// That long, or until all is over.
    fn wait(&self, moment: Duration) {
        let _ = self.0.recv_timeout(moment);
    }

    fn is_over(&self) -> bool {
        self.0.recv_timeout(Duration::ZERO) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Whoever waits for a number of times waits no longer when no more can come.
struct Over<'a>(&'a Times);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Relaxed);
    }
}

fn again_and_again<T>(work: impl FnOnce(&Times) -> T, mut event: impl FnMut(&Pause) + Send) -> T {
    let (times, (stop, stopped)) = (&Times::new(0), channel());
    thread::scope(|scope| {
        let pause = Pause(stopped);
        scope.spawn(move || {
            let _over = Over(times);
            while !pause.is_over() {
                event(&pause);
                times.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Also when it panics: the other thread is waited for.
        let _stops = stop;
        work(times)
    })
}
