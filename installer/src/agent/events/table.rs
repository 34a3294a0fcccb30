//! The events that are known, and which of them is written next: bounded, with a rate limit, and with repeats counted
//! in a series instead of written each. Pure.

use super::event::{Event, EventRequest, Write};
use crate::retry::{Backoff, RateLimit};
use std::time::{Duration, Instant, SystemTime};

/// The most events that are kept: more than the pods of a node, which may all be refused.
const MAX_EVENTS: usize = 256;
/// How many requests are sent without a delay, and then one after each interval.
const BURST: u32 = 25;
const REQUEST_INTERVAL: Duration = Duration::from_secs(2);
/// The first repeat is written at once, the count of further ones so often.
const SERIES_INTERVAL: Duration = Duration::from_secs(60);
/// After so long without a repeat an event is forgotten; another one like it is a new event. An event that could not be
/// written for so long is dropped.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The delay after a failed request, doubled with each further one.
const RETRY: Duration = Duration::from_secs(5);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// All known events, the oldest first.
#[derive(Debug)]
pub(super) struct EventTable {
    entries: Vec<CountedEvent>,
    /// How many events were dropped without ever being written.
    dropped: u64,
    next_id: u64,
    limit: RateLimit,
    backoff: Backoff,
    /// When the delay after the last failure ends.
    retry_at: Option<Instant>,
}

#[derive(Debug)]
struct CountedEvent {
    id: u64,
    event: Event,
    /// Its name in the cluster, once it is created.
    name: Option<String>,
    first: SystemTime,
    last: SystemTime,
    repeated: Instant,
    count: u32,
    /// The count in the cluster.
    written: u32,
    /// When its count may be written again.
    next_write: Instant,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventOutcome {
    Written,
    /// The event no longer exists (the API server deletes events after an hour), or its namespace does not.
    Missing,
    /// The API server will not accept it.
    Refused,
    /// It may succeed later.
    Failed,
}

impl Default for EventTable {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            dropped: 0,
            next_id: 0,
            limit: RateLimit::new(BURST, REQUEST_INTERVAL),
            backoff: Backoff::new(RETRY),
            retry_at: None,
        }
    }
}

impl EventTable {
    /// Adds an event, or counts it if it is known. Drops it when the table is full of events that are not written yet.
    pub(super) fn post(&mut self, event: Event, now: Instant) {
        let time = SystemTime::now();
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.event == event) {
            // The API's type is an int32.
            entry.count = (entry.count + 1).min(i32::MAX.unsigned_abs());
            (entry.last, entry.repeated) = (time, now);
            return;
        }
        if self.entries.len() >= MAX_EVENTS {
            let Some(written) = self.entries.iter().position(CountedEvent::is_written) else {
                self.dropped += 1;
                return;
            };
            self.entries.remove(written);
        }
        self.next_id += 1;
        self.entries.push(CountedEvent {
            id: self.next_id,
            event,
            name: None,
            first: time,
            last: time,
            repeated: now,
            count: 1,
            written: 0,
            next_write: now,
        });
    }

    /// Returns the request to send now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Write> {
        let forgotten =
            self.entries.extract_if(.., |entry| now.duration_since(entry.repeated) >= FORGOTTEN_AFTER);
        self.dropped += forgotten.filter(|entry| entry.name.is_none()).map(|_| 1).sum::<u64>();
        if now < self.allowed_at(now) {
            return None;
        }
        let is_due = |entry: &&CountedEvent| !entry.is_written() && entry.next_write <= now;
        let entry = self.entries.iter().find(is_due)?;
        self.limit.count(now);
        let request = if entry.name.is_some() { EventRequest::Repeat } else { EventRequest::Create };
        let name = entry.name.clone().unwrap_or_else(|| entry.event.new_name(entry.first));
        Some(Write {
            id: entry.id,
            request,
            event: entry.event.clone(),
            name,
            first: entry.first,
            last: entry.last,
            count: entry.count,
        })
    }

    /// Returns how many events were dropped: the table was full, or the API server refused them, or accepted none for
    /// `FORGOTTEN_AFTER`.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Forgets all events, and keeps the count.
    pub(super) fn clear(&mut self) {
        // The response to a request that is under way must not be taken for that to another event.
        *self = Self { dropped: self.dropped, next_id: self.next_id, ..Self::default() };
    }

    /// Returns how long there is nothing to send; none while nothing waits.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let waiting = self.entries.iter().filter(|entry| !entry.is_written());
        let due = waiting.map(|entry| entry.next_write).min()?;
        Some(due.max(self.allowed_at(now)).saturating_duration_since(now))
    }

    /// Returns when the rate limit and the delay after a failure allow a request.
    fn allowed_at(&self, now: Instant) -> Instant {
        let limited = now + self.limit.wait(now);
        self.retry_at.map_or(limited, |retry_at| retry_at.max(limited))
    }

    /// Records how a request ended.
    pub(super) fn finish(&mut self, write: &Write, outcome: EventOutcome, now: Instant) {
        self.retry_at = match outcome {
            EventOutcome::Failed => Some(now + self.backoff.failed(MAX_RETRY)),
            EventOutcome::Written | EventOutcome::Missing | EventOutcome::Refused => {
                self.backoff.succeeded();
                None
            }
        };
        let is_it = |entry: &CountedEvent| entry.id == write.id;
        let Some(entry) = self.entries.iter_mut().find(|entry| is_it(entry)) else { return };
        match (outcome, write.request) {
            (EventOutcome::Written, request) => {
                entry.written = write.count;
                if request == EventRequest::Repeat || write.count > 1 {
                    entry.next_write = now + SERIES_INTERVAL;
                }
                entry.name = Some(write.name.clone());
            }
            // The repeats become a new event.
            (EventOutcome::Missing, EventRequest::Repeat) => {
                (entry.name, entry.first) = (None, entry.last);
                entry.count -= entry.written.min(entry.count - 1);
                (entry.written, entry.next_write) = (0, now);
            }
            (EventOutcome::Missing | EventOutcome::Refused, request) => {
                self.dropped += u64::from(request == EventRequest::Create);
                self.entries.retain(|entry| !is_it(entry));
            }
            (EventOutcome::Failed, _) => {}
        }
    }
}

impl CountedEvent {
    fn is_written(&self) -> bool {
        self.written == self.count
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::Reason;
    use super::*;

    fn event(note: &str) -> Event {
        Event::of_node(Reason::RedirectionLost, note)
    }

    /// Returns the requests that are due at `now`, each with its count, and finishes them.
    fn written(table: &mut EventTable, now: Instant) -> Vec<(EventRequest, u32)> {
        std::iter::from_fn(|| {
            let write = table.next(now)?;
            table.finish(&write, EventOutcome::Written, now);
            Some((write.request, write.count))
        })
        .collect()
    }

    #[test]
    fn repeats_are_one_event_whose_count_is_written_once_a_minute() {
        let (mut table, start) = (EventTable::default(), Instant::now());
        let later = |seconds| start + Duration::from_secs(seconds);
        let post = |table: &mut EventTable, seconds| table.post(event("x"), later(seconds));
        post(&mut table, 0);
        assert_eq!(written(&mut table, start), [(EventRequest::Create, 1)]);
        assert_eq!(table.wait(start), None, "nothing waits");
        post(&mut table, 0);
        assert_eq!(written(&mut table, start), [(EventRequest::Repeat, 2)]);
        (1..50).for_each(|second| post(&mut table, second));
        assert_eq!(written(&mut table, later(50)), []);
        assert_eq!(table.wait(later(50)), Some(Duration::from_secs(10)));
        assert_eq!(written(&mut table, later(60)), [(EventRequest::Repeat, 51)]);
        assert_eq!(written(&mut table, later(700)), []);
        post(&mut table, 700);
        assert_eq!(
            written(&mut table, later(700)),
            [(EventRequest::Create, 1)],
            "the old series is forgotten"
        );
    }

    #[test]
    fn many_events_are_written_at_a_limited_rate_and_the_queue_is_bounded() {
        let (mut table, start) = (EventTable::default(), Instant::now());
        (0..10_000).for_each(|n| table.post(event(&n.to_string()), start));
        assert_eq!(table.entries.len(), MAX_EVENTS);
        assert_eq!(written(&mut table, start).len(), 25);
        assert_eq!(table.wait(start), Some(REQUEST_INTERVAL));
        assert_eq!(written(&mut table, start + Duration::from_secs(11)).len(), 5);
        // Written events make room.
        (0..10_000).for_each(|n| table.post(event(&format!("later {n}")), start));
        assert_eq!(table.entries.len(), MAX_EVENTS);
        let end = start + FORGOTTEN_AFTER;
        assert_eq!(written(&mut table, end), [], "too old");
        assert!(table.entries.is_empty());
    }

    #[test]
    fn a_failed_request_is_repeated_after_a_growing_delay_and_a_refused_one_is_not() {
        let (mut table, mut now) = (EventTable::default(), Instant::now());
        table.post(event("x"), now);
        let first = table.next(now).unwrap();
        for seconds in [5, 10, 20, 40, 60, 60] {
            let write = table.next(now).unwrap();
            assert_eq!(write.name, first.name, "a request whose response was lost may have arrived");
            table.finish(&write, EventOutcome::Failed, now);
            assert_eq!((table.next(now), table.wait(now)), (None, Some(Duration::from_secs(seconds))));
            now += Duration::from_secs(seconds);
        }
        let write = table.next(now).unwrap();
        table.finish(&write, EventOutcome::Refused, now);
        assert_eq!((table.next(now), table.wait(now)), (None, None));
    }

    #[test]
    fn repeats_of_an_event_that_the_api_server_deleted_are_a_new_event() {
        let (mut table, start) = (EventTable::default(), Instant::now());
        table.post(event("x"), start);
        written(&mut table, start);
        (0..3).for_each(|_| table.post(event("x"), start));
        let now = start + REQUEST_INTERVAL;
        let write = table.next(now).unwrap();
        assert_eq!((write.request, write.count), (EventRequest::Repeat, 4));
        table.finish(&write, EventOutcome::Missing, now);
        let new = table.next(now).unwrap();
        assert_eq!((new.request, new.count), (EventRequest::Create, 3));
        assert_ne!(new.name, write.name);
    }
}
