//! The findings file: its age, its lock, and FIFOs, links or directories in its place.

use super::*;
use gybe_netfilter::probe::{Finding, Profile, Refusal};
use gybe_test_support::TestDir;
use std::sync::mpsc;
use std::thread;

/// A directory for one test. The cache is in a subdirectory, which does not exist at first.
struct CacheDirectory {
    _test: TestDir,
    path: PathBuf,
}

impl CacheDirectory {
    fn new() -> Self {
        let test = TestDir::new("probe-cache");
        Self { path: test.join("gybe"), _test: test }
    }

    fn cache(&self) -> ProbeCache {
        ProbeCache::at(&self.path)
    }

    fn write(&self, found: &Capabilities) {
        fs::create_dir_all(&self.path).unwrap();
        replace_file(
            &self.cache().directory,
            FINDINGS,
            &findings::to_json(&this_node().unwrap(), found).to_string(),
        )
        .unwrap();
    }
}

fn found(finding: &Finding) -> Capabilities {
    let findings = Profile::ALL.map(|profile| (profile, finding.clone())).into_iter().collect();
    Capabilities { backends: [(BackendKind::Nft, findings)].into_iter().collect(), ..Capabilities::default() }
}

fn nothing_lacking(_: &Capabilities) -> Option<BackendKind> {
    None
}

#[test]
fn findings_are_loaded_until_they_are_cleared() {
    let directory = CacheDirectory::new();
    assert_eq!(directory.cache().load(), None);
    directory.write(&found(&Finding::Works));
    assert_eq!(directory.cache().load(), Some(found(&Finding::Works)));
    let report = directory.cache().get_or_probe(MaxAge::Any, nothing_lacking).unwrap();
    assert_eq!(report.capabilities, found(&Finding::Works));
    assert!(!directory.path.join("probe.lock").exists(), "nothing is locked to read");
    let mode = fs::metadata(directory.path.join("probe.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    directory.cache().clear();
    directory.cache().clear();
    assert_eq!(directory.cache().load(), None);
}

fn set_age(directory: &CacheDirectory, by: Duration) {
    let file = File::options().write(true).open(directory.path.join("probe.json")).unwrap();
    file.set_modified(SystemTime::now() - by).unwrap();
}

/// Without expiry, one temporary failure of a profile would refuse every pod that needs it until the next boot;
/// with a probe for every ADD, a kernel that lacks the profile would delay every ADD.
#[test]
fn negative_findings_expire_for_calls_that_need_them_and_positive_ones_last_until_the_next_boot() {
    let fault = |profile| Finding::Misbehaves(format!("{profile} timed out"));
    let all_but = |failing| {
        let finding = |profile| if Some(profile) == failing { fault(profile) } else { Finding::Works };
        Profile::ALL.map(|profile| (profile, finding(profile))).into_iter().collect()
    };
    let (nft, iptables, legacy) = (BackendKind::Nft, BackendKind::IptablesNft, BackendKind::IptablesLegacy);
    let backends = [
        (nft, all_but(Some(Profile::Lists))),
        (iptables, all_but(Some(Profile::V4AndV6))),
        (legacy, all_but(None)),
    ];
    let kept = Capabilities { backends: backends.into_iter().collect(), ..Capabilities::default() };
    let directory = CacheDirectory::new();
    directory.write(&kept);
    for (age, max_age, usable) in [
        (Duration::ZERO, MaxAge::Any, &[nft, iptables, legacy][..]),
        (Duration::ZERO, MaxAge::Recent, &[nft, iptables, legacy]),
        (NEGATIVE_TTL, MaxAge::Any, &[iptables, legacy]),
        (NEGATIVE_TTL, MaxAge::Recent, &[legacy]),
        (NEGATIVE_TTL, MaxAge::Fresh, &[]),
    ] {
        set_age(&directory, age);
        let report = directory.cache().get_or_probe(max_age, nothing_lacking).unwrap().capabilities.backends;
        let found: Vec<_> = report.iter().map(|(kind, _)| kind).collect();
        assert_eq!(found, usable, "{max_age:?} after {age:?}");
    }
    assert_eq!(directory.cache().load(), Some(kept), "load returns all findings");
}

#[test]
fn fresh_findings_do_not_come_from_the_file() {
    let directory = CacheDirectory::new();
    directory.write(&found(&Finding::Works));
    let report = directory.cache().get_or_probe(MaxAge::Fresh, nothing_lacking).unwrap();
    assert_eq!(report.capabilities, Capabilities::default());
}

#[test]
fn the_finding_that_nothing_works_expires_after_half_a_minute() {
    let directory = CacheDirectory::new();
    directory.write(&found(&Finding::Refused(Refusal::default())));
    assert!(directory.cache().load().is_some());
    set_age(&directory, Duration::from_secs(31));
    assert_eq!(directory.cache().load(), None);
    // The clock was set back, so the age is unknown.
    let file = File::options().write(true).open(directory.path.join("probe.json")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    assert_eq!(directory.cache().load(), None);
    directory.write(&found(&Finding::Works));
    set_age(&directory, Duration::from_secs(86_400));
    assert!(directory.cache().load().is_some());
}

#[test]
fn an_invalid_file_is_ignored() {
    let directory = CacheDirectory::new();
    fs::create_dir_all(&directory.path).unwrap();
    let file = directory.path.join("probe.json");
    for text in ["", "{", "[]", "\u{0}", &"x".repeat(70_000), &format!("{}{}", " ".repeat(70_000), "{}")] {
        fs::write(&file, text).unwrap();
        assert_eq!(directory.cache().load(), None, "{text:.20}");
    }
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(directory.cache().load(), None);
    fs::remove_dir(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(directory.cache().load(), None);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/proc/self/cmdline", &file).unwrap();
    assert_eq!(directory.cache().load(), None);
}

#[test]
fn findings_that_cannot_be_stored_are_returned_with_the_error() {
    let cache = ProbeCache::at(Path::new("/proc/gybe-is-not-here"));
    let report = cache.get_or_probe(MaxAge::Any, nothing_lacking).unwrap();
    assert!(report.store_error.is_some());
}

/// A call that waits for a FIFO's other end would block its pod forever.
#[test]
fn a08_a10_a_fifo_or_a_link_in_place_of_lock_or_file_is_an_error_without_waiting() {
    for name in ["probe.lock", ".probe.json.new"] {
        for is_fifo in [true, false] {
            let directory = CacheDirectory::new();
            fs::create_dir(&directory.path).unwrap();
            let (obstacle, elsewhere) = (directory.path.join(name), directory.path.join("elsewhere"));
            match is_fifo {
                true => nix::unistd::mkfifo(&obstacle, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                false => std::os::unix::fs::symlink(&elsewhere, &obstacle).unwrap(),
            }
            let (cache, (sender, receiver)) = (directory.cache(), mpsc::channel());
            thread::spawn(move || {
                let lock = cache.lock();
                sender
                    .send(
                        lock.unwrap()
                            .and_then(|_lock| replace_file(&cache.directory, FINDINGS, "{}"))
                            .is_err(),
                    )
                    .unwrap();
            });
            let is_refused = receiver.recv_timeout(Duration::from_secs(20));
            assert_eq!((is_refused, elsewhere.exists()), (Ok(true), false), "{name}, a FIFO: {is_fifo}");
        }
    }
}

#[test]
fn a_call_that_waited_for_the_lock_reads_the_findings_of_the_other_call() {
    let directory = CacheDirectory::new();
    let lock = directory.cache().lock().unwrap().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lacking = |known: &Capabilities| known.backends.is_empty().then_some(BackendKind::Nft);
            directory.cache().get_or_probe(MaxAge::Any, lacking).unwrap().capabilities
        });
        directory.write(&found(&Finding::Works));
        drop(lock);
        assert_eq!(waiting.join().unwrap(), found(&Finding::Works));
    });
}

#[test]
fn a_file_of_the_maximum_size_is_read_and_one_byte_more_is_not() {
    let directory = CacheDirectory::new();
    directory.write(&found(&Finding::Works));
    let file = directory.path.join("probe.json");
    let text = fs::read_to_string(&file).unwrap();
    for (length, known) in [(64 * 1024, true), (64 * 1024 + 1, false)] {
        fs::write(&file, format!("{text}{}", " ".repeat(length - text.len()))).unwrap();
        assert_eq!(directory.cache().load().is_some(), known, "{length}");
    }
}

#[test]
fn findings_exist_until_they_are_cleared() {
    let directory = CacheDirectory::new();
    assert!(!directory.cache().exists());
    directory.write(&found(&Finding::Works));
    assert!(directory.cache().exists());
    directory.cache().clear();
    assert!(!directory.cache().exists());
}

#[test]
fn the_hint_for_a_busy_probe_names_the_setting() {
    assert!(
        ProbeCacheError::Busy(LOCK_TIMEOUT).hint().is_some_and(|hint| hint.contains("set backend to nft"))
    );
    assert_eq!(ProbeCacheError::Node(io::ErrorKind::NotFound.into()).hint(), None);
}

#[test]
fn a_directory_that_cannot_be_created_is_the_error() {
    // mkdir(2) fails in sysfs with EPERM; an open in the missing directory would fail with ENOENT.
    let error = ProbeCache::at(Path::new("/sys/gybe-probe-cache")).lock_file().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
}
