//! Verdicts on conf directories: which file the runtime uses, and why a pod is not redirected.

use gybe_netfilter::model::Hint;
use std::collections::BTreeMap;

use nix::errno::Errno;

use super::*;
use crate::host::observe::runtimes::{ReportWait, Runtime, SearchedDirectory};
use crate::host::observe::{Access, ConfFile, FileKind, NamedFile};

const LIST: &str = r#"{"name":"net","plugins":[{"type":"calico"},{"type":"portmap"}]}"#;
const CHAINED: &str = r#"{"name":"net","plugins":[{"type":"calico"},{"type":"gybe-cni"}]}"#;
const OURS_NOT_LAST: &str =
    r#"{"name":"net","plugins":[{"type":"calico"},{"type":"gybe-cni"},{"type":"bandwidth"}]}"#;
const BOTH: &str = r#"{"name":"net","plugins":[{"type":"calico"},{"type":"istio-cni"},{"type":"gybe-cni"}]}"#;
const BAD_ENTRY: &str =
    r#"{"name":"net","plugins":[{"type":"calico"},{"type":"gybe-cni","backend":"nftt"}]}"#;
const OURS: &str = r#"{"name":"istio-cni","type":"gybe-cni"}"#;
const ISTIOS: &str = r#"{"name":"istio-cni","type":"istio-cni"}"#;
const MULTUS: &str = r#"{"name":"multus-cni-network","type":"multus-shim"}"#;

fn name(name: &str) -> FileName {
    FileName::new(name).unwrap()
}

fn file(content: Result<&str, Unreadable>) -> ConfFile {
    let access = Access { mode: 0o600, uid: 0, gid: 0 };
    ConfFile { content: content.map(|text| text.as_bytes().to_vec()), access, kind: FileKind::Regular }
}

/// A node with these conf files, whose program directory holds the primary's plugins and ours.
struct World {
    conf: ConfDirectory,
    programs: ProgramDirectory,
    runtimes: Runtimes,
    shape: Shape,
    confirmed: Confirmed,
    fault: Option<ProgramFault>,
    entry: Option<Entry>,
}

impl World {
    fn with(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(file_name, text)| (name(file_name), file(Ok(text)))).collect();
        let names = ["bandwidth", "calico", "gybe-cni", "istio-cni", "loopback", "multus-shim", "portmap"];
        let names = names.into_iter().map(|it| (name(it), NamedFile::Executable)).collect();
        Self {
            conf: ConfDirectory {
                state: DirectoryState::Present,
                files,
                networks: BTreeMap::new(),
                unread_networks: BTreeMap::new(),
                is_of_multus: false,
                has_temporary: false,
            },
            programs: ProgramDirectory {
                state: DirectoryState::Present,
                names,
                is_noexec: false,
                files: BTreeMap::new(),
                has_temporary: false,
                has_lock: false,
            },
            runtimes: Runtimes::default(),
            shape: Shape::Chained { pinned: None },
            confirmed: Confirmed::No,
            fault: None,
            entry: None,
        }
    }

    fn desired(mut self, entry: &str) -> Self {
        self.entry = Some(Entry::parse(entry.as_bytes()).unwrap());
        self
    }

    fn run_by(mut self, runtime: Runtime, drop_ins: DropIns) -> Self {
        self.runtimes = Runtimes::of([(runtime, Some(drop_ins))]);
        self
    }

    fn shaped(mut self, shape: Shape) -> Self {
        self.shape = shape;
        self
    }

    fn unread(mut self, file_name: &str, why: Errno) -> Self {
        self.conf.files.insert(name(file_name), file(Err(Unreadable::System(why))));
        self
    }

    fn dropped_in(mut self, text: &str) -> Self {
        let ours = BTreeMap::from([(name(DROP_IN), file(Ok(text)))]);
        self.conf.networks.insert(name("net"), ours);
        self
    }

    fn without_the_primarys(mut self) -> Self {
        self.programs.names.retain(|name, _| name.as_os_str() == "gybe-cni");
        self
    }

    fn judged(&self) -> Judgement {
        judge(&JudgeInput {
            conf: &self.conf,
            programs: &self.programs,
            runtimes: &self.runtimes,
            plugin: "gybe-cni",
            entry: self.entry.as_ref(),
            fault: self.fault,
            shape: &self.shape,
            confirmed: self.confirmed,
        })
    }

    /// The only reason against a redirection, as text.
    fn reason(&self) -> String {
        let judged = self.judged();
        let reasons: Vec<_> = judged.reasons.iter().map(ToString::to_string).collect();
        assert_eq!(reasons.len(), 1, "{reasons:#?}");
        assert!(judged.reasons[0].hint().is_some() || judged.reasons[0] == Problem::Waiting, "{reasons:?}");
        reasons[0].clone()
    }
}

fn standalone() -> Shape {
    Shape::Standalone { file: name("YYY-gybe-cni.conf") }
}

#[test]
fn a_network_whose_version_the_plugin_refuses_redirects_no_pod() {
    let with = |version: &str| CHAINED.replacen('{', &format!(r#"{{"cniVersion":"{version}","#), 1);
    for version in ["", "0.1.0", "1.1.0"] {
        assert!(World::with(&[("10-a.conflist", &with(version))]).judged().is_redirected(), "{version}");
    }
    for version in ["1.0", "1.2.0", "x"] {
        let reason = World::with(&[("10-a.conflist", &with(version))]).reason();
        let begins =
            format!("the CNI version of 10-a.conflist is {version:?}, and gybe-cni, which supports 0.1.0,");
        assert!(reason.starts_with(&begins), "{reason}");
    }
    let several = with("1.0.0").replacen('{', r#"{"cniVersions":["1.1.0","1.2.0"],"#, 1);
    assert!(World::with(&[("10-a.conflist", &several)]).judged().is_redirected(), "libcni uses 1.1.0");
}

#[test]
fn only_the_version_of_the_network_that_has_or_is_to_have_the_entry_counts() {
    let newer = |text: &str| text.replacen('{', r#"{"cniVersion":"1.2.0","#, 1);
    let (multus, list, chained) = (newer(MULTUS), newer(LIST), newer(CHAINED));
    let pinned = || Shape::Chained { pinned: Some(name("10-a.conf")) };
    for in_use in [MULTUS, &multus] {
        let of_ours = World::with(&[("00-multus.conf", in_use), ("YYY-gybe-cni.conf", OURS)]);
        assert!(of_ours.shaped(standalone()).judged().is_redirected(), "{in_use}");
        let behind =
            |text| World::with(&[("00-multus.conf", in_use), ("10-a.conflist", text)]).shaped(pinned());
        assert!(behind(CHAINED).judged().is_redirected(), "{in_use}");
        for text in [&list, &chained] {
            let reason = behind(text).reason();
            assert!(reason.starts_with(r#"the CNI version of 10-a.conflist is "1.2.0""#), "{text}: {reason}");
        }
    }
    // An entry that is still in the file in use decides, although another file is to have it.
    let still = [("05-b.conflist", chained.as_str()), ("10-a.conflist", LIST)];
    let reason = World::with(&still).shaped(pinned()).reason();
    assert!(reason.starts_with("the CNI version of 05-b.conflist"), "{reason}");
    for shape in [Shape::Chained { pinned: None }, Shape::DropIn] {
        let reason = World::with(&[("10-a.conflist", &list)]).shaped(shape).reason();
        assert!(reason.starts_with("the CNI version of 10-a.conflist"), "{reason}");
    }
}

#[test]
fn a_pod_is_redirected_if_the_file_in_use_runs_the_plugin() {
    let world = World::with(&[("10-a.conflist", CHAINED), ("20-b.conflist", LIST)]);
    let judged = world.judged();
    assert!(judged.is_redirected(), "{judged:?}");
    assert_eq!(judged.in_use.unwrap().file, name("10-a.conflist"));
    assert!(
        World::with(&[("10-a.conflist", OURS_NOT_LAST)]).judged().is_redirected(),
        "also with a plugin after ours"
    );
}

#[test]
fn a_file_without_our_entry_that_sorts_first_leaves_every_pod_unredirected() {
    let world = World::with(&[("05-b.conflist", LIST), ("10-a.conflist", CHAINED)]);
    assert_eq!(
        world.reason(),
        "the runtime uses 05-b.conflist (calico, portmap), which does not run gybe-cni"
    );
    let world = World::with(&[("05-b.conf", ISTIOS), ("10-a.conflist", CHAINED)]);
    assert_eq!(world.reason(), "the runtime uses 05-b.conf, which has no plugin that gives a pod a network");
    let pinned = || Shape::Chained { pinned: Some(name("10-a.conflist")) };
    let world = World::with(&[("05-b.conflist", LIST), ("10-a.conflist", CHAINED)]).shaped(pinned());
    assert_eq!(world.reason(), "the runtime uses 05-b.conflist, not 10-a.conflist");
    let world = World::with(&[("00-m.conf", MULTUS), ("10-a.conflist", CHAINED)]).shaped(pinned());
    assert!(world.judged().is_redirected(), "Multus calls the pinned file");
    assert_eq!(World::with(&[]).reason(), "waiting for the primary plugin's conf file");
}

#[test]
fn a_file_that_cannot_be_read_may_be_the_one_in_use() {
    for (errno, hint) in [(Errno::EACCES, "chown it to root"), (Errno::ENOENT, "mount its target")] {
        for runtime in [Runtime::Containerd, Runtime::CriO] {
            let world = World::with(&[("10-a.conflist", CHAINED)]).unread("05-b.conflist", errno);
            let world = world.run_by(runtime, DropIns::Loaded);
            let reason = world.reason();
            assert!(
                reason.starts_with("05-b.conflist cannot be read here, and the runtime may use it"),
                "{reason}"
            );
            assert!(world.judged().reasons[0].hint().unwrap().contains(hint), "{errno}");
            assert_eq!(
                primary(&world.conf, "gybe-cni", &world.runtimes),
                None,
                "a later file is not extended"
            );
        }
    }
    let behind = World::with(&[("10-a.conflist", CHAINED)]).unread("15-b.conflist", Errno::EACCES);
    assert!(behind.judged().is_redirected(), "a file that sorts after the one in use has no effect");
}

#[test]
fn an_unreadable_drop_in_or_its_directory_leaves_the_chain_unknown() {
    let mut world = World::with(&[("10-a.conflist", CHAINED)]).dropped_in(OURS);
    let own = world.conf.networks.get_mut(&name("net")).unwrap();
    own.insert(name("50-x.conf"), file(Err(Unreadable::System(Errno::EACCES))));
    assert!(world.reason().contains("50-x.conf in its network's directory: it cannot be read"));
    let mut world = World::with(&[("10-a.conflist", CHAINED)]);
    world.conf.unread_networks.insert(name("net"), Unreadable::System(Errno::EACCES));
    assert!(world.reason().contains("net in its network's directory: it cannot be read"));
    let older = world.run_by(Runtime::Containerd, DropIns::Ignored);
    assert!(older.judged().is_redirected(), "an older runtime does not read the directory");
}

#[test]
fn containerd_stops_at_a_broken_file_and_crio_skips_it() {
    let world = || World::with(&[("05-b.conflist", "{"), ("10-a.conflist", CHAINED)]);
    let stopped =
        "containerd loads no network because 05-b.conflist, which sorts first, is broken: it is not JSON";
    assert!(world().reason().starts_with(stopped), "an unknown runtime may be either");
    assert!(world().run_by(Runtime::Containerd, DropIns::Loaded).reason().starts_with(stopped));
    let judged = world().run_by(Runtime::CriO, DropIns::Ignored).judged();
    assert!(judged.is_redirected() && judged.notes.len() == 1, "{judged:?}");
    assert_eq!(primary(&world().conf, "gybe-cni", &Runtimes::default()).unwrap().file, name("10-a.conflist"));
}

#[test]
fn a_program_directory_without_the_primarys_plugins_needs_confirmation() {
    let world = || World::with(&[("10-a.conflist", CHAINED)]).without_the_primarys();
    assert_eq!(world().reason(), "none of the plugins of 10-a.conflist (calico) is in the program directory");
    let confirmed = World { confirmed: Confirmed::Yes, ..world() };
    assert!(confirmed.judged().is_redirected());
    let mut named = world();
    named.runtimes.plugin_directory = ConfiguredDirectory::Named;
    named.runtimes.search_paths =
        vec![path(&[("ours", &[]), ("/b", &[("calico", true), ("loopback", true)])])];
    assert!(named.judged().is_redirected());
    named.runtimes.plugin_directory = ConfiguredDirectory::Unknown;
    named.runtimes.waits = ReportWait::Entry;
    assert_eq!(named.reason(), "waiting for the probe's report about the container runtime");
    let mut others = World::with(&[("10-a.conflist", CHAINED)]);
    others.runtimes.plugin_directory = ConfiguredDirectory::Others(vec!["/usr/lib/cni".into()]);
    let elsewhere = "the runtime looks for plugins in /usr/lib/cni, not where gybe-cni is placed";
    assert_eq!(others.reason(), elsewhere, "although the primary's plugin is here too");
    others.confirmed = Confirmed::Yes;
    assert!(others.judged().is_redirected());
}

#[test]
fn a_conf_directory_that_the_runtime_does_not_read_redirects_no_pod() {
    let mut world = World::with(&[("10-a.conflist", CHAINED)]);
    world.runtimes.conf_directory = ConfiguredDirectory::Others(vec!["/etc/cni/\ncustom".into()]);
    let elsewhere = r"the runtime reads conf files in /etc/cni/\ncustom, not here";
    assert_eq!(world.reason(), elsewhere, "a path is quoted on one line");
    world.conf.files.clear();
    assert_eq!(
        world.judged().reasons[0].to_string(),
        elsewhere,
        "reported in place of waiting for a conf file"
    );
    let mut confirmed = World::with(&[("10-a.conflist", CHAINED)]);
    confirmed.runtimes.conf_directory = world.runtimes.conf_directory;
    confirmed.confirmed = Confirmed::Yes;
    assert!(confirmed.judged().is_redirected());
}

#[test]
fn cri_o_uses_the_network_that_its_configuration_names() {
    let other = LIST.replace("net", "other");
    let files = [("05-b.conflist", other.as_str()), ("10-a.conflist", CHAINED), ("20-c.conf", "{")];
    let mut world = World::with(&files).run_by(Runtime::CriO, DropIns::Loaded);
    assert!(!world.judged().is_redirected(), "without a name the first file is used");
    world.runtimes.crio_network = Some("net".into());
    assert!(world.judged().is_redirected(), "{:?}", world.judged());
    assert_eq!(primary(&world.conf, "gybe-cni", &world.runtimes).unwrap().file, name("10-a.conflist"));
    world.runtimes.crio_network = Some("missing".into());
    let reason =
        "CRI-O uses only the network missing, which its cni_default_network names, and no conf file has it";
    assert_eq!(world.reason(), reason);
    world = world.unread("15-x.conflist", Errno::EACCES);
    assert!(world.reason().starts_with("15-x.conflist cannot be read here"), "it may have the network");
    world.runtimes = Runtimes { crio_network: Some("net".into()), ..Runtimes::default() };
    assert!(!world.judged().is_redirected(), "containerd, which may run too, uses the first file");
}

/// A runtime's search path: directories with files, and whether each is executable; "ours" is where we place programs.
fn path(directories: &[(&str, &[(&str, bool)])]) -> Vec<SearchedDirectory> {
    let directory = |(path, programs): &(&str, &[(&str, bool)])| SearchedDirectory {
        path: (*path).into(),
        is_ours: *path == "ours",
        is_noexec: false,
        programs: Some(programs.iter().map(|(name, runs)| ((*name).to_owned(), *runs)).collect()),
    };
    directories.iter().map(directory).collect()
}

#[test]
fn a_pod_cannot_start_without_a_program_of_another_plugin_of_its_ipam_or_loopback() {
    let ipam = CHAINED.replace(r#""type":"calico""#, r#""type":"calico","ipam":{"type":"calico-ipam"}"#);
    let portmap = CHAINED.replace(r#"{"type":"calico"}"#, r#"{"type":"calico"},{"type":"portmap"}"#);
    let found = |world: World| -> Vec<String> {
        let reasons = world.judged().reasons;
        assert!(reasons.iter().all(|reason| reason.hint().is_some()), "{reasons:?}");
        reasons.iter().map(ToString::to_string).collect()
    };
    let (containerd, crio) = (Runtime::Containerd, Runtime::CriO);
    let without = |runtime, text: &str, missing: &str| {
        let mut world = World::with(&[("10-a.conflist", text)]).run_by(runtime, DropIns::Loaded);
        world.programs.names.remove(OsStr::new(missing));
        world
    };
    let searched = |mut world: World, directories: &[(&str, &[(&str, bool)])]| {
        world.runtimes.plugin_directory = ConfiguredDirectory::Named;
        world.runtimes.search_paths = vec![path(directories)];
        world
    };
    for (text, missing) in [(&ipam, "calico-ipam"), (&portmap, "portmap"), (&portmap, "loopback")] {
        for runtime in [containerd, crio] {
            let is_needed = !(missing == "loopback" && runtime == crio);
            let expected = |why: &str| -> Vec<String> {
                let sentence = format!("{missing}, which the runtime runs for 10-a.conflist, {why}");
                is_needed.then_some(sentence).into_iter().collect()
            };
            let world = || without(runtime, text, missing);
            assert_eq!(found(world()), expected("is not in the program directory"));
            let confirmed = found(World { confirmed: Confirmed::Yes, ..world() });
            assert_eq!(
                confirmed.is_empty(),
                !is_needed || runtime == containerd,
                "CRI-O may use another network"
            );
            let mut linked = world();
            linked.programs.names.insert(name(missing), NamedFile::Elsewhere);
            assert!(found(linked).is_empty(), "where the link leads is unknown here");
            let no_other = "is in none of the directories in which the runtime looks for plugins";
            let alone: &[(&str, &[(&str, bool)])] = &[("ours", &[])];
            assert_eq!(found(searched(world(), alone)), expected(no_other));
            let hidden = World { confirmed: Confirmed::Yes, ..searched(world(), alone) };
            assert_eq!(found(hidden), expected(no_other), "the directories are known");
            assert!(found(searched(world(), &[("ours", &[]), ("/b", &[(missing, true)])])).is_empty());
            let unlisted = |mut world: World| {
                world.runtimes.search_paths[0][1].programs = None;
                world
            };
            assert!(found(unlisted(searched(world(), &[("ours", &[]), ("/b", &[])]))).is_empty());
            let not_executable = expected("is not executable");
            let earlier = [("/b", &[(missing, false)][..]), ("ours", &[]), ("/c", &[(missing, true)])];
            assert_eq!(found(searched(world(), &earlier)), not_executable, "libcni takes the first file");
            let mut both = searched(world(), &[("ours", &[]), ("/b", &[(missing, true)])]);
            both.runtimes.search_paths.push(path(alone));
            assert_eq!(found(both), expected(no_other), "another runtime does not find it");
            for (state, listed, problem) in [
                (NamedFile::NotExecutable, true, &not_executable),
                (NamedFile::Elsewhere, true, &Vec::new()),
                (NamedFile::Elsewhere, false, &not_executable),
            ] {
                let mut world = searched(world(), &[("ours", &[(missing, listed)])]);
                world.programs.names.insert(name(missing), state);
                assert_eq!(found(world), *problem, "{state:?}");
            }
        }
    }
    let mut internal = without(containerd, CHAINED, "loopback");
    internal.runtimes.has_internal_loopback = true;
    assert!(internal.judged().is_redirected());
    let mut of_multus = without(containerd, &portmap, "portmap");
    of_multus.conf.is_of_multus = true;
    assert!(of_multus.judged().is_redirected(), "Multus looks for programs elsewhere");
}

#[test]
fn our_own_program_is_the_first_of_its_name_and_can_be_executed() {
    let world = || {
        let mut world = World::with(&[("10-a.conflist", CHAINED)]);
        world.runtimes.plugin_directory = ConfiguredDirectory::Named;
        world
    };
    let searched = |directories: &[(&str, &[(&str, bool)])]| {
        let mut world = world();
        world.runtimes.search_paths = vec![path(directories)];
        world
    };
    let ours: &[(&str, bool)] = &[("gybe-cni", true)];
    assert_eq!(
        searched(&[("/a", ours), ("ours", ours)]).reason(),
        "the runtime runs the gybe-cni in /a, not the one that is placed"
    );
    assert!(searched(&[("/a", &[]), ("ours", ours), ("/b", ours)]).judged().is_redirected());
    let noexec = "the program gybe-cni cannot be run: its directory is mounted noexec";
    for is_seen_here in [true, false] {
        let mut mounted = searched(&[("ours", ours), ("/b", &[])]);
        mounted.programs.is_noexec = is_seen_here;
        mounted.runtimes.search_paths[0][0].is_noexec = !is_seen_here;
        assert_eq!(mounted.reason(), noexec);
    }
    let mut further = searched(&[("ours", ours), ("/b", &[("loopback", true)])]);
    further.programs.names.remove(OsStr::new("loopback"));
    assert!(further.judged().is_redirected());
    further.runtimes.search_paths[0][1].is_noexec = true;
    let reason = &further.judged().reasons[0];
    let expected = "loopback, which the runtime runs for 10-a.conflist, is not executable";
    assert_eq!(reason.to_string(), expected);
    assert!(reason.hint().is_some_and(|hint| hint.contains("mounted noexec")));
}

#[test]
fn a_runtime_handler_with_another_conf_directory_and_no_entry_is_a_reason_until_the_operator_confirms() {
    let mut world = World::with(&[("10-a.conflist", CHAINED)]);
    world.runtimes.handlers_elsewhere = vec![("kata".to_owned(), "/etc/cni/kata".into())];
    let expected = "pods of the runtime handler kata use the first conf file in /etc/cni/kata, which is missing or does not run gybe-cni";
    assert_eq!(world.reason(), expected);
    world.confirmed = Confirmed::Yes;
    let judged = world.judged();
    assert!(judged.is_redirected());
    assert_eq!(judged.notes[0].to_string(), expected);
}

#[test]
fn a_broken_file_stops_containerd_also_behind_the_first_if_it_loads_several() {
    let files = [("10-a.conflist", CHAINED), ("20-b.conflist", LIST), ("30-c.conflist", "{")];
    let with = |several, runtime| {
        let mut world = World::with(&files).run_by(runtime, DropIns::Loaded);
        world.runtimes.several_networks = several;
        world
    };
    for count in [NetworkCount::All, NetworkCount::AtMost(3)] {
        let reason = with(Some(count), Runtime::Containerd).reason();
        assert!(
            reason.contains("30-c.conflist, one of the files that max_conf_num makes it load"),
            "{reason}"
        );
        let unread = with(Some(count), Runtime::Containerd).unread("15-x.conflist", Errno::EACCES);
        assert!(unread.reason().starts_with("15-x.conflist cannot be read here"));
        assert!(with(Some(count), Runtime::CriO).judged().is_redirected());
    }
    for several in [None, Some(NetworkCount::AtMost(2))] {
        assert!(with(several, Runtime::Containerd).judged().is_redirected(), "{several:?}");
    }
    let mut second = with(Some(NetworkCount::AtMost(2)), Runtime::Containerd);
    second.programs.names.remove(OsStr::new("portmap"));
    assert!(second.reason().starts_with("portmap, which the runtime runs for 20-b.conflist, "));
}

#[test]
fn a_runtime_that_uses_another_directory_is_the_only_reason() {
    let mut world = World::with(&[("10-a.conflist", LIST)]);
    world.runtimes.plugin_directory = ConfiguredDirectory::Others(vec!["/usr/lib/cni".into()]);
    assert!(world.reason().starts_with("the runtime looks for plugins in /usr/lib/cni"));
}

#[test]
fn a_file_that_cri_o_skips_has_a_hint_for_cri_o() {
    let world = World::with(&[("05-b.conflist", "{"), ("10-a.conflist", CHAINED)]);
    let judged = world.run_by(Runtime::CriO, DropIns::Loaded).judged();
    assert!(judged.notes[0].hint().unwrap().starts_with("CRI-O skips it"), "{judged:?}");
}

#[test]
fn only_multus_calls_a_standalone_network() {
    let files = [("10-a.conflist", LIST), ("YYY-gybe-cni.conf", OURS)];
    let world = World::with(&files).shaped(standalone());
    let without_multus =
        "the runtime uses 10-a.conflist (calico, portmap), and only Multus would call YYY-gybe-cni.conf";
    assert_eq!(world.reason(), without_multus);
    let files = [("00-multus.conf", MULTUS), ("YYY-gybe-cni.conf", OURS)];
    assert!(World::with(&files).shaped(standalone()).judged().is_redirected());
    assert_eq!(
        World::with(&files[..1]).shaped(standalone()).reason(),
        "YYY-gybe-cni.conf does not contain our network"
    );
    let alone = World::with(&files[1..]).shaped(standalone());
    assert!(alone.reason().contains("has no plugin that gives a pod a network"));
    let mut of_multus = alone;
    of_multus.conf.is_of_multus = true;
    assert!(of_multus.judged().is_redirected(), "OpenShift's directory, which no runtime reads");
}

#[test]
fn a_drop_in_redirects_pods_only_if_the_runtime_reads_it() {
    let world = || World::with(&[("10-a.conflist", LIST)]).dropped_in(OURS).shaped(Shape::DropIn);
    assert!(world().run_by(Runtime::Containerd, DropIns::Loaded).judged().is_redirected());
    let older = world().run_by(Runtime::Containerd, DropIns::Ignored).reason();
    assert_eq!(
        older,
        "the runtime does not read net/zz-gybe-cni.conf: it needs containerd 2.1 or CRI-O 1.34"
    );
    assert!(world().reason().starts_with("whether the runtime reads net/zz-gybe-cni.conf is unknown here"));
    let mut called = world();
    called.runtimes.read_drop_ins();
    assert!(called.judged().is_redirected(), "an ADD of the plugin was observed");
}

#[test]
fn an_entry_or_a_program_that_fails_every_pod_redirects_none() {
    let refused = World::with(&[("10-a.conflist", BAD_ENTRY)]).reason();
    assert!(refused.starts_with("the plugin refuses its entry in 10-a.conflist: "), "{refused}");
    assert!(World::with(&[("10-a.conflist", BOTH)]).reason().contains("entries of istio-cni and gybe-cni"));
    for (fault, expected) in [
        (ProgramFault::Missing, "the program gybe-cni is not in the program directory"),
        (ProgramFault::Another, "the program gybe-cni is not the one that was placed there"),
        (ProgramFault::NotRun, "the program gybe-cni does not run"),
        (ProgramFault::NoExec, "the program gybe-cni cannot be run: its directory is mounted noexec"),
        (ProgramFault::Writable, "the program gybe-cni is writable by other users"),
    ] {
        let world = World { fault: Some(fault), ..World::with(&[("10-a.conflist", CHAINED)]) };
        assert_eq!(world.reason(), expected);
    }
    let mut gone = World::with(&[("10-a.conflist", CHAINED)]);
    gone.conf.state = DirectoryState::Deleted;
    assert!(gone.reason().starts_with("the conf directory was deleted on the host"));
}

#[test]
fn an_entry_with_other_settings_than_the_desired_ones_redirects_no_pod() {
    let desired = r#"{"type":"gybe-cni","exclude_namespaces":["a"],"log_level":"debug"}"#;
    let entry = |keys: &str| format!(r#"{{"type":"gybe-cni"{keys}}}"#);
    let list = |entries: &str| format!(r#"{{"name":"net","plugins":[{{"type":"calico"}},{entries}]}}"#);
    let right = entry(r#","exclude_namespaces":["a"]"#);
    for (keys, differ) in [
        ("", "exclude_namespaces"),
        (r#","exclude_namespaces":["a"],"facts":{"socket":"/x"},"gates":"strict""#, "gates, facts.socket"),
        (r#","exclude_namespaces":["a"],"backend":"nft""#, "backend"),
        (
            r#","exclude_namespaces":["a"],"capabilities":{"io.kubernetes.cri.pod-annotations":true}"#,
            "capabilities",
        ),
    ] {
        let wrong = entry(keys);
        let expected = |file: &str| {
            format!("the entry in {file} does not have the desired settings yet: {differ} differ")
        };
        let chained = |entries: &str| World::with(&[("10-a.conflist", &list(entries))]).desired(desired);
        assert_eq!(chained(&wrong).reason(), expected("10-a.conflist"));
        for both in [format!("{wrong},{right}"), format!("{right},{wrong}")] {
            assert_eq!(chained(&both).reason(), expected("10-a.conflist"), "the runtime runs each entry");
        }
        let dropped_in = || World::with(&[("10-a.conflist", LIST)]).dropped_in(&wrong).desired(desired);
        let dropped_in = || dropped_in().shaped(Shape::DropIn);
        assert_eq!(dropped_in().run_by(Runtime::Containerd, DropIns::Loaded).reason(), expected(DROP_IN));
        let further = chained(&right).dropped_in(&wrong);
        let further = |reads| {
            World { conf: further.conf.clone(), ..chained(&right) }.run_by(Runtime::Containerd, reads)
        };
        assert_eq!(further(DropIns::Loaded).reason(), expected(DROP_IN));
        assert!(further(DropIns::Ignored).judged().is_redirected());
        let files = [("00-multus.conf", MULTUS), ("YYY-gybe-cni.conf", wrong.as_str())];
        let alone = World::with(&files).shaped(standalone()).desired(desired);
        assert_eq!(alone.reason(), expected("YYY-gybe-cni.conf"));
        let pinned = list(&wrong);
        let pinned = World::with(&[("00-multus.conf", MULTUS), ("10-a.conflist", &pinned)]).desired(desired);
        let pinned = pinned.shaped(Shape::Chained { pinned: Some(name("10-a.conflist")) });
        assert_eq!(pinned.reason(), expected("10-a.conflist"), "Multus calls it");
    }
    let unlike = entry(
        r#","exclude_namespaces":["a"],"log_level":"error","probed":{"backend":"nft","kernel":"1"},"x":1"#,
    );
    for harmless in [&right, &unlike] {
        let world = World::with(&[("10-a.conflist", &list(harmless))]).desired(desired);
        assert!(world.judged().is_redirected(), "{harmless}: {:?}", world.judged());
    }
}
