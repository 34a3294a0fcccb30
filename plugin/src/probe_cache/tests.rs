use super::*;
use gybe_netfilter::probe::{Finding, Profile, Refusal};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;

/// A directory of one test's own, gone with the value.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("gybe-probe-cache-{}-{number}", std::process::id())))
    }

    fn cache(&self) -> ProbeCache {
        ProbeCache::at(&self.0)
    }

    fn write(&self, found: &Capabilities) {
        fs::create_dir_all(&self.0).unwrap();
        place(&self.cache().directory, KEPT, &probed::to_json(&this_node().unwrap(), found).to_string())
            .unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn found(finding: &Finding) -> Capabilities {
    let findings = Profile::ALL.map(|profile| (profile, finding.clone())).into_iter().collect();
    Capabilities { backends: [(BackendKind::Nft, findings)].into_iter().collect(), ..Capabilities::default() }
}

fn nothing_lacks(_: &Capabilities) -> Option<BackendKind> {
    None
}

#[test]
fn what_was_kept_is_known_until_it_is_forgotten() {
    let place = Place::new();
    assert_eq!(place.cache().recall(), None);
    place.write(&found(&Finding::Works));
    assert_eq!(place.cache().recall(), Some(found(&Finding::Works)));
    let learnt = place.cache().learn(Age::Any, nothing_lacks).unwrap();
    assert_eq!(learnt.capabilities, found(&Finding::Works));
    assert!(!place.0.join("probe.lock").exists(), "nothing is locked to read");
    let mode = fs::metadata(place.0.join("probe.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    place.cache().forget();
    place.cache().forget();
    assert_eq!(place.cache().recall(), None);
}

fn age(place: &Place, by: Duration) {
    let file = File::options().write(true).open(place.0.join("probe.json")).unwrap();
    file.set_modified(SystemTime::now() - by).unwrap();
}

/// One profile without memory for a moment would otherwise cost every pod that needs it the boot; and
/// asked again by everybody it would cost every ADD behind it, for ever on a kernel that lacks it.
#[test]
fn what_does_not_work_is_asked_again_by_whom_it_refuses_and_what_works_is_believed_for_the_boot() {
    let fault = |profile| Finding::Misbehaves(format!("{profile} was late"));
    let but = |flaw| {
        let finding = |profile| if Some(profile) == flaw { fault(profile) } else { Finding::Works };
        Profile::ALL.map(|profile| (profile, finding(profile))).into_iter().collect()
    };
    let (nft, iptables, legacy) = (BackendKind::Nft, BackendKind::IptablesNft, BackendKind::IptablesLegacy);
    let backends =
        [(nft, but(Some(Profile::Lists))), (iptables, but(Some(Profile::V4AndV6))), (legacy, but(None))];
    let kept = Capabilities { backends: backends.into_iter().collect(), ..Capabilities::default() };
    let place = Place::new();
    place.write(&kept);
    for (later, age_of_it, believed) in [
        (Duration::ZERO, Age::Any, &[nft, iptables, legacy][..]),
        (Duration::ZERO, Age::Recent, &[nft, iptables, legacy]),
        (BELIEVED, Age::Any, &[iptables, legacy]),
        (BELIEVED, Age::Recent, &[legacy]),
        (BELIEVED, Age::Fresh, &[]),
    ] {
        age(&place, later);
        let learnt = place.cache().learn(age_of_it, nothing_lacks).unwrap().capabilities.backends;
        let found: Vec<_> = learnt.iter().map(|(kind, _)| kind).collect();
        assert_eq!(found, believed, "{age_of_it:?} after {later:?}");
    }
    assert_eq!(place.cache().recall(), Some(kept), "for people all of it");
}

#[test]
fn fresh_findings_do_not_come_from_the_file() {
    let place = Place::new();
    place.write(&found(&Finding::Works));
    let learnt = place.cache().learn(Age::Fresh, nothing_lacks).unwrap();
    assert_eq!(learnt.capabilities, Capabilities::default());
}

#[test]
fn that_nothing_works_is_believed_for_half_a_minute_only() {
    let place = Place::new();
    place.write(&found(&Finding::Refused(Refusal::default())));
    assert!(place.cache().recall().is_some());
    age(&place, Duration::from_secs(31));
    assert_eq!(place.cache().recall(), None);
    // A clock that was set back says nothing about age.
    let file = File::options().write(true).open(place.0.join("probe.json")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(3600)).unwrap();
    assert_eq!(place.cache().recall(), None);
    place.write(&found(&Finding::Works));
    age(&place, Duration::from_secs(86_400));
    assert!(place.cache().recall().is_some());
}

#[test]
fn a_file_that_is_no_such_file_is_nothing_known() {
    let place = Place::new();
    fs::create_dir_all(&place.0).unwrap();
    let file = place.0.join("probe.json");
    for text in ["", "{", "[]", "\u{0}", &"x".repeat(70_000), &format!("{}{}", " ".repeat(70_000), "{}")] {
        fs::write(&file, text).unwrap();
        assert_eq!(place.cache().recall(), None, "{text:.20}");
    }
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert_eq!(place.cache().recall(), None);
    fs::remove_dir(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(place.cache().recall(), None);
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/proc/self/cmdline", &file).unwrap();
    assert_eq!(place.cache().recall(), None);
}

#[test]
fn where_nothing_can_be_kept_it_is_said_and_no_failure() {
    let cache = ProbeCache::at(Path::new("/proc/gybe-is-not-here"));
    let learnt = cache.learn(Age::Any, nothing_lacks).unwrap();
    assert!(learnt.not_kept.is_some());
}

/// Whatever stands there waits for nobody: a call that hangs keeps its pod, or the node, for ever.
#[test]
fn a08_a10_a_fifo_or_a_link_in_place_of_lock_or_file_keeps_nobody_waiting() {
    for name in ["probe.lock", ".probe.json.new"] {
        for is_fifo in [true, false] {
            let place = Place::new();
            fs::create_dir(&place.0).unwrap();
            let (stranger, elsewhere) = (place.0.join(name), place.0.join("elsewhere"));
            match is_fifo {
                true => nix::unistd::mkfifo(&stranger, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                false => std::os::unix::fs::symlink(&elsewhere, &stranger).unwrap(),
            }
            let (cache, (tell, told)) = (place.cache(), mpsc::channel());
            thread::spawn(move || {
                let lock = cache.lock();
                tell.send(
                    lock.unwrap().and_then(|_held| super::place(&cache.directory, KEPT, "{}")).is_err(),
                )
                .unwrap();
            });
            let not_kept = told.recv_timeout(Duration::from_secs(20));
            assert_eq!((not_kept, elsewhere.exists()), (Ok(true), false), "{name}, a FIFO: {is_fifo}");
        }
    }
}

#[test]
fn who_waits_for_the_lock_reads_what_the_other_has_found() {
    let place = Place::new();
    let held = place.cache().lock().unwrap().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let lacking = |known: &Capabilities| known.backends.is_empty().then_some(BackendKind::Nft);
            place.cache().learn(Age::Any, lacking).unwrap().capabilities
        });
        place.write(&found(&Finding::Works));
        drop(held);
        assert_eq!(waits.join().unwrap(), found(&Finding::Works));
    });
}

#[test]
fn findings_of_the_largest_size_are_read_and_one_byte_more_is_not() {
    let place = Place::new();
    place.write(&found(&Finding::Works));
    let file = place.0.join("probe.json");
    let text = fs::read_to_string(&file).unwrap();
    for (length, known) in [(64 * 1024, true), (64 * 1024 + 1, false)] {
        fs::write(&file, format!("{text}{}", " ".repeat(length - text.len()))).unwrap();
        assert_eq!(place.cache().recall().is_some(), known, "{length}");
    }
}

#[test]
fn findings_are_kept_while_the_file_is_there() {
    let place = Place::new();
    assert!(!place.cache().is_kept());
    place.write(&found(&Finding::Works));
    assert!(place.cache().is_kept());
    place.cache().forget();
    assert!(!place.cache().is_kept());
}

#[test]
fn the_hint_of_a_wait_that_is_too_long_names_the_setting() {
    assert!(LearnError::Busy(PATIENCE).hint().is_some_and(|hint| hint.contains("set backend to nft")));
    assert_eq!(LearnError::Node(io::ErrorKind::NotFound.into()).hint(), None);
}

/// The directory is made where it is missing, and a directory that cannot be made is the reason given.
#[test]
fn a_directory_that_cannot_be_made_is_the_reason_why_nothing_is_kept() {
    let place = Place::new();
    drop(place.cache().lock().unwrap().unwrap());
    drop(place.cache().lock().unwrap().unwrap());
    let file_in_the_way = place.0.join("file");
    fs::write(&file_in_the_way, "").unwrap();
    let below = ProbeCache::at(&file_in_the_way.join("run")).lock().unwrap();
    assert_eq!(below.unwrap_err().kind(), io::ErrorKind::NotADirectory);
}
