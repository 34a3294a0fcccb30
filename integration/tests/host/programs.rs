//! Placement of the real plugin from an image with two builds of it: a program that was damaged during copying is
//! never renamed to the plugin's name; a full disk keeps the previous files; no ADD fails while the plugin is
//! replaced.

use gybe_installer::host::apply::{ChangeError, FailedChange};
use gybe_installer::host::conflist::entry::Entry;
use gybe_installer::host::desired::{
    Confirmed, DesiredState, Install, Placement, PlacementOrder, Program, Shape, TakeOver, Trial,
};
use gybe_installer::host::observe::{Directory, FileName, Hash, NodeDirectories};
use gybe_installer::host::pass::{Pass, PassHistory, pass};
use gybe_installer::host::problem::Problem;
use gybe_integration::namespace::with_own_mounts;
use gybe_integration::programs::{path_of_ours, run};
use gybe_netfilter::model::Hint;
use gybe_test_support::TestDir;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;

/// A primary's conf file.
pub(crate) const LIST: &str =
    "{\"name\":\"net\",\"cniVersion\":\"1.0.0\",\"plugins\":[{\"type\":\"calico\"}]}\n";

/// A simulated node's directory.
pub(crate) struct Node(pub(crate) TestDir);

impl Node {
    pub(crate) fn new(test: &str) -> Self {
        let root = TestDir::new(test).with_subdirectories(&["net.d", "bin", "results", "image"]);
        root.write("net.d/10-a.conflist", LIST);
        let node = Self(root);
        // Stripped, as in the release: a quarter of the bytes to copy.
        let plugin = path_of_ours("gybe-cni").unwrap();
        let stripped = node.image("1");
        let words = ["--strip-all", "-o", stripped.to_str().unwrap(), plugin.to_str().unwrap()];
        assert_eq!(run("strip", &words, "").unwrap().code, Some(0), "strip comes with the C linker");
        // Bytes behind an ELF file's last section have no effect.
        let mut other = fs::read(&stripped).unwrap();
        other.push(b'\n');
        fs::copy(&stripped, node.image("2")).unwrap();
        fs::write(node.image("2"), other).unwrap();
        node
    }

    pub(crate) fn image(&self, build: &str) -> PathBuf {
        self.0.join("image").join(build)
    }

    pub(crate) fn plugin(&self) -> PathBuf {
        self.0.join("bin/gybe-cni")
    }

    pub(crate) fn directories(&self) -> NodeDirectories {
        let at = |folder: &str| self.0.join(folder);
        NodeDirectories { conf: at("net.d"), programs: at("bin"), results: at("results") }
    }

    /// Returns the desired state with this build of the plugin in the chained shape.
    pub(crate) fn desired(&self, build: &str) -> DesiredState {
        let source = self.image(build);
        let hash = Hash::of_all(File::open(&source).unwrap()).unwrap();
        DesiredState::Installed(install(Program {
            name: FileName::new("gybe-cni").unwrap(),
            source,
            hash,
            trial: Trial::CniVersion,
            place: Placement::Always,
            need: PlacementOrder::BeforeEntry,
        }))
    }

    pub(crate) fn conf(&self) -> String {
        fs::read_to_string(self.0.join("net.d/10-a.conflist")).unwrap()
    }
}

fn install(program: Program) -> Install {
    let entry = json!({ "type": "gybe-cni", "capabilities": { "io.kubernetes.cri.pod-annotations": true } });
    Install {
        shape: Shape::Chained { pinned: None }.into(),
        pinned_by: "conf_name",
        entry: Entry::from_value(&entry).unwrap(),
        programs: vec![program],
        retired: Vec::new(),
        take_over: TakeOver::Now,
        mode: 0o600,
        confirmed: Confirmed::Yes,
    }
}

const ENVIRONMENT: [(&str, &str); 6] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/nonexistent"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin"),
    ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=cart-0"),
];

/// Makes the ADD of an unmeshed pod with the program at `plugin`.
pub(crate) fn add(plugin: &Path) {
    let call = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "gybe-cni",
        "runtimeConfig": { "io.kubernetes.cri.pod-annotations": {} },
        "prevResult": { "cniVersion": "1.0.0", "ips": [], "dns": {} },
    });
    #[expect(clippy::disallowed_methods, reason = "as a runtime does, and twenty at a time")]
    let mut program = Command::new(plugin);
    let pipes = program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = pipes.env_clear().envs(ENVIRONMENT).spawn().unwrap_or_else(|why| panic!("{why}"));
    child.stdin.take().unwrap().write_all(call.to_string().as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert_eq!((ran.status.code(), &result), (Some(0), &call["prevResult"]), "{ran:?}");
}

const PAGE: usize = 4096;

/// Installs build 1, and returns its bytes and the desired state with build 2, whose image the test damages.
fn install_then_upgrade(test: &str) -> (Node, PassHistory, DesiredState, Vec<u8>) {
    let (node, mut history) = (Node::new(test), PassHistory::default());
    assert!(pass(&node.directories(), &node.desired("1"), &mut history).unwrap().left.is_done());
    let desired = node.desired("2");
    let before = fs::read(node.image("1")).unwrap();
    (node, history, desired, before)
}

/// Asserts that the damaged program is refused because of its hash, and that the previous one stays.
fn assert_refused(node: &Node, desired: &DesiredState, history: &mut PassHistory) {
    // A changed desired state resets the retry backoff.
    history.desired_state_changed();
    let failed = pass(&node.directories(), desired, history).unwrap().applied.failed;
    assert!(
        matches!(failed.as_slice(), [FailedChange { why: ChangeError::Damaged { .. }, .. }]),
        "{failed:?}"
    );
    assert_eq!(
        fs::read_dir(node.0.join("bin")).unwrap().count(),
        2,
        "the previous program and the lock file"
    );
}

fn assert_previous_serves(node: &Node, before: &[u8]) {
    assert!(fs::read(node.plugin()).unwrap() == before, "not the previous program");
    assert!(node.conf().contains("gybe-cni") && node.conf() != LIST);
    add(&node.plugin());
}

#[test]
fn f10_a_bit_flipped_in_any_page_of_the_plugin_is_found() {
    let (node, mut history, desired, before) = install_then_upgrade("flipped");
    let source = File::options().read(true).write(true).open(node.image("2")).unwrap();
    let pages = before.len().div_ceil(PAGE);
    for page in 0..pages {
        // Another byte in each page, and another bit.
        let at = (page * PAGE + page * 37 % PAGE).min(before.len() - 1);
        let mut byte = [0];
        source.read_exact_at(&mut byte, at as u64).unwrap();
        source.write_all_at(&[byte[0] ^ (1 << (page % 8))], at as u64).unwrap();
        assert_refused(&node, &desired, &mut history);
        source.write_all_at(&byte, at as u64).unwrap();
    }
    assert_previous_serves(&node, &before);
    history.desired_state_changed();
    assert!(pass(&node.directories(), &desired, &mut history).unwrap().left.is_done());
    assert!(fs::read(node.plugin()).unwrap() == fs::read(node.image("2")).unwrap());
    println!("a bit flipped in each of {pages} pages");
}

#[test]
fn f10_a_truncated_plugin_is_never_accepted() {
    let (node, mut history, desired, before) = install_then_upgrade("cut");
    let source = File::options().write(true).open(node.image("2")).unwrap();
    let ends: Vec<usize> = (0..=before.len()).step_by(16 * PAGE).chain([before.len()]).collect();
    for end in ends.iter().rev() {
        source.set_len(*end as u64).unwrap();
        assert_refused(&node, &desired, &mut history);
    }
    assert_previous_serves(&node, &before);
    println!("cut off at {} places", ends.len());
}

fn small_disk(at: &Path, options: &str) {
    mount(Some("small"), at, Some("tmpfs"), MsFlags::empty(), Some(options)).unwrap();
}

/// Fills the file system.
fn fill(directory: &Path) {
    let mut ballast = File::create(directory.join("ballast")).unwrap();
    while ballast.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
}

fn assert_disk_full(pass: &Pass) {
    let [FailedChange { why: ChangeError::System { why: Errno::ENOSPC, .. }, .. }] =
        pass.applied.failed.as_slice()
    else {
        panic!("{:?}", pass.applied.failed)
    };
    assert!(pass.applied.failed[0].why.hint().is_some());
}

#[test]
fn f11_on_a_full_disk_the_old_program_stays_until_space_is_free() {
    let node = Node::new("full-bin");
    with_own_mounts(|| {
        // Room for one and a half programs.
        let size = fs::metadata(node.image("1")).unwrap().len() * 3 / 2;
        small_disk(&node.0.join("bin"), &format!("size={size}"));
        let (directories, mut history) = (node.directories(), PassHistory::default());
        assert!(pass(&directories, &node.desired("1"), &mut history).unwrap().left.is_done());
        fs::write(node.0.join("net.d/10-a.conflist"), LIST).unwrap();
        let full = pass(&directories, &node.desired("2"), &mut history).unwrap();
        assert_disk_full(&full);
        assert!(fs::read(node.plugin()).unwrap() == fs::read(node.image("1")).unwrap());
        assert!(node.conf().contains("gybe-cni"), "the chain is repaired nevertheless");
        add(&node.plugin());
        mount(None::<&str>, &directories.programs, None::<&str>, MsFlags::MS_REMOUNT, Some("size=64m"))
            .unwrap();
        // The agent does not retry before the backoff ends.
        thread::sleep(full.due.unwrap());
        assert!(pass(&directories, &node.desired("2"), &mut history).unwrap().left.is_done());
        assert!(fs::read(node.plugin()).unwrap() == fs::read(node.image("2")).unwrap());
    });
}

#[test]
fn f11_on_a_full_disk_the_primarys_file_stays_as_it_is() {
    let node = Node::new("full-conf");
    with_own_mounts(|| {
        let (conf, mut history) = (node.0.join("net.d"), PassHistory::default());
        small_disk(&conf, "size=64k");
        fs::write(conf.join("10-a.conflist"), LIST).unwrap();
        fill(&conf);
        assert_disk_full(&pass(&node.directories(), &node.desired("1"), &mut history).unwrap());
        assert_eq!(node.conf(), LIST);
        fs::remove_file(conf.join("ballast")).unwrap();
        assert!(pass(&node.directories(), &node.desired("1"), &mut history).unwrap().left.is_done());
        assert!(node.conf().contains("gybe-cni"));
    });
}

fn bind_mount(of: &Path, at: &Path) {
    fs::create_dir_all(at).unwrap();
    mount(Some(of), at, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
}

#[test]
fn f13_a_directory_that_is_renamed_on_the_host_counts_as_deleted() {
    let node = Node::new("renamed");
    with_own_mounts(|| {
        for (of, folder) in [(Directory::Conf, "net.d"), (Directory::Programs, "bin")] {
            let pod = node.0.join(format!("pod-{folder}"));
            let (conf, programs) = (pod.join("net.d"), pod.join("bin"));
            bind_mount(&node.directories().conf, &conf);
            bind_mount(&node.directories().programs, &programs);
            let (directories, mut history) =
                (NodeDirectories { conf, programs, ..node.directories() }, PassHistory::default());
            let mut left = || pass(&directories, &node.desired("1"), &mut history).unwrap().left;
            assert!(left().is_done(), "{folder}");
            let (name, aside) = (node.0.join(folder), node.0.join("aside"));
            fs::rename(&name, &aside).unwrap();
            fs::create_dir(&name).unwrap();
            fs::write(name.join("20-b.conflist"), LIST).unwrap();
            assert_eq!(left().problems, [Problem::Deleted(of)]);
            fs::remove_dir_all(&name).unwrap();
            fs::rename(&aside, &name).unwrap();
            assert!(left().is_done(), "{folder} has its old name");
        }
    });
}

const REPLACED: usize = 1_000;
const CALLERS: usize = 20;

/// The number of replacements begun so far; `None` when the test ends.
struct Rounds {
    now: Mutex<Option<usize>>,
    changed: Condvar,
}

impl Rounds {
    fn set(&self, now: Option<usize>) {
        *self.now.lock().unwrap() = now;
        self.changed.notify_all();
    }

    /// Waits for the replacement after this one.
    fn after(&self, last: usize) -> Option<usize> {
        *self.changed.wait_while(self.now.lock().unwrap(), |now| *now == Some(last)).unwrap()
    }
}

/// Ends the callers on drop, also if the test panics.
struct EndCallers<'a>(&'a Rounds);

impl Drop for EndCallers<'_> {
    fn drop(&mut self) {
        self.0.set(None);
    }
}

#[test]
fn f09_no_add_fails_while_the_plugin_is_replaced_a_thousand_times() {
    let node = Node::new("replaced");
    let (directories, builds, mut history) =
        (node.directories(), ["1", "2"].map(|it| node.desired(it)), PassHistory::default());
    assert!(pass(&directories, &builds[1], &mut history).unwrap().left.is_done());
    let rounds = Rounds { now: Mutex::new(Some(0)), changed: Condvar::new() };
    let (adds, plugin) = (AtomicUsize::new(0), node.plugin());
    thread::scope(|scope| {
        for _ in 0..CALLERS {
            // Each caller makes one ADD for every replacement, concurrently with it.
            scope.spawn(|| {
                let mut last = 0;
                while let Some(now) = rounds.after(last) {
                    last = now;
                    add(&plugin);
                    adds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _end = EndCallers(&rounds);
        for n in 1..=REPLACED {
            rounds.set(Some(n));
            // As the agent does for another image: a new desired state is not a conflict.
            history.desired_state_changed();
            let performed = pass(&directories, &builds[(n + 1) % 2], &mut history).unwrap().applied;
            assert_eq!((performed.done, performed.failed.len()), (1, 0), "{n}: {:?}", performed.failed);
        }
    });
    let adds = adds.into_inner();
    assert!(adds > REPLACED, "{adds}");
    println!("replaced {REPLACED} times under {adds} ADDs of {CALLERS} callers");
}
