//! The network that ocicni chooses from a conf directory, and the plugins that it calls, compared with what the agent
//! predicts for CRI-O.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use gybe_containerd_tests::{Sandbox, SimulatedHost};
use gybe_installer::host::desired::{Confirmed, Shape};
use gybe_installer::host::judge::{JudgeInput, judge};
use gybe_installer::host::libcni::LoadedNetwork;
use gybe_installer::host::libcni::{ChosenNetwork, NoChoice, choose, choose_by_name};
use gybe_installer::host::observe::runtimes::{Runtime, Runtimes};
use gybe_installer::host::observe::{HashCache, NodeDirectories, ObserveScope, observe};
use serde_json::Value;

use crate::fixture::{host_without_runtime, log};
use crate::ocicni::{CrioPod, Libcni, NetworkConfig, Ocicni};

const PLUGIN_DIR: &str = "/run/gybe/plugins";
/// The types of the plugins that were called, one on each line.
const CALLED: &str = "/run/gybe/called";

/// A plugin that supports every CNI version and adds its name to [`CALLED`].
const PLUGIN: &str = r#"#!/bin/sh
case $CNI_COMMAND in
VERSION)
    echo '{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}'
    ;;
ADD)
    echo "${0##*/}" >>/run/gybe/called
    echo '{}'
    ;;
esac
"#;

/// The types of the plugins in [`PLUGIN_DIR`].
const TYPES: [&str; 9] = ["noop", "x", "y", "nine", "ten", "mesh", "one", "two", "three"];

/// A conf directory.
struct ConfCase {
    name: String,
    files: Vec<(String, Content)>,
    default_network: Option<&'static str>,
}

enum Content {
    File(Vec<u8>),
    /// A link to a file with this content; none for a missing file.
    LinkTo(Option<Vec<u8>>),
    LinkToDirectory,
}

/// The name of a network, and the types of its plugins.
type Chosen = (String, Vec<String>);

fn list(name: &str, kind: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"{kind}"}}]}}"#)
}

fn single(name: &str, kind: &str) -> String {
    format!(r#"{{"cniVersion":"1.0.0","name":"{name}","type":"{kind}"}}"#)
}

fn case(name: &str, files: &[(&str, &str)]) -> ConfCase {
    let file = |(name, text): &(&str, &str)| ((*name).to_owned(), Content::File(text.as_bytes().to_vec()));
    ConfCase { name: name.to_owned(), files: files.iter().map(file).collect(), default_network: None }
}

fn named(network: &'static str, name: &str, files: &[(&str, &str)]) -> ConfCase {
    ConfCase { default_network: Some(network), ..case(name, files) }
}

/// The directories of `conf-selection.json`.
fn recorded_cases() -> Vec<ConfCase> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../vectors/cni/conf-selection.json");
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let content = |file: &Value| match (file["symlink"] == true, file["content"].as_str()) {
        (true, text) => Content::LinkTo(text.map(|text| text.as_bytes().to_vec())),
        (false, text) => Content::File(text.unwrap().as_bytes().to_vec()),
    };
    let read = |case: &Value| ConfCase {
        name: case["name"].as_str().unwrap().to_owned(),
        files: case["files"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, file)| (name.clone(), content(file)))
            .collect(),
        default_network: None,
    };
    cases.iter().map(read).collect()
}

fn further_cases() -> Vec<ConfCase> {
    let (one, two, three) = (list("a", "one"), list("b", "two"), list("c", "three"));
    let (one, two, three) = (one.as_str(), two.as_str(), three.as_str());
    let single_one = single("a", "one");
    let with = |member: &str| {
        format!(r#"{{"cniVersion":"1.0.0","name":"a","plugins":[{{"type":"one"}}],{member}}}"#)
    };
    let before = |text: &str| case(text, &[("05.conflist", text), ("10.conflist", two)]);
    let deep = with(&format!(r#""deep":{}{}"#, "[".repeat(10_001), "]".repeat(10_001)));
    let mut cases = vec![
        case("digits", &[("9.conflist", one), ("10.conflist", two)]),
        case("upper case", &[("a.conflist", one), ("Z.conflist", two)]),
        case("hidden", &[("10.conflist", one), (".z.conflist", two)]),
        case("only an extension", &[("10.conflist", one), (".conflist", two)]),
        case("hyphen, space, plus", &[("-.conflist", one), (" .conflist", two), ("+.conflist", three)]),
        case("dot and hyphen", &[("10.conflist", one), ("10-a.conflist", two)]),
        case("not ASCII", &[("\u{e4}.conflist", one), ("z.conflist", two)]),
        case("upper-case extension", &[("10.CONFLIST", one), ("20.conflist", two)]),
        case(
            "other extensions",
            &[("10.conflist~", one), ("10.conflist.bak", one), ("10.yaml", one), ("20.conflist", two)],
        ),
        case("the three extensions", &[("10.json", &single_one), ("10.conflist", two)]),
        case("a list in a .conf", &[("05.conf", one), ("10.conflist", two)]),
        case("a list in a .json", &[("05.json", one), ("10.conflist", two)]),
        case("a single plugin in a .conflist", &[("05.conflist", &single_one), ("10.conflist", two)]),
        case("a .conf without a name", &[("05.conf", r#"{"cniVersion":"1.0.0","type":"one"}"#)]),
        case("one name, two files", &[("10.conflist", one), ("05.conf", &single("a", "two"))]),
        case("drop-ins of a .conf", &[("10.conf", &single_one), ("a/10.conf", r#"{"type":"x"}"#)]),
        case("drop-ins of another network", &[("10.conflist", one), ("b/10.conf", r#"{"type":"x"}"#)]),
        case("a drop-in in a .json", &[("10.conflist", one), ("a/10.json", r#"{"type":"x"}"#)]),
        case(
            "loadOnlyInlinedPlugins as text",
            &[("10.conflist", &with(r#""loadOnlyInlinedPlugins":"true""#)), ("a/10.conf", r#"{"type":"x"}"#)],
        ),
        case(
            "a broken drop-in, and another network",
            &[("10.conflist", one), ("a/10.conf", "{"), ("20.conflist", two)],
        ),
        named("b", "the named network is the second", &[("10.conflist", one), ("20.conflist", two)]),
        named(
            "b",
            "the named network twice",
            &[("10.conflist", one), ("20.conflist", two), ("05.conf", &single("b", "three"))],
        ),
        named("b", "the named network after a broken file", &[("10.conflist", "{"), ("20.conflist", two)]),
        named("b", "the named network is broken", &[("10.conflist", one), ("20.conflist", &two[1..])]),
        named(
            "05.conf",
            "the name of a file",
            &[("05.conf", r#"{"cniVersion":"1.0.0","type":"three"}"#), ("10.conflist", one)],
        ),
        named("z", "no network has the name", &[("10.conflist", one)]),
        before(&format!("\u{feff}{one}")),
        before(&deep),
        before("null"),
        before("[]"),
        before(r#"{"cniVersion":"1.0.0","name":null,"plugins":[{"type":"one"}]}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":null}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":{"type":"one"}}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":[null]}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":["one"]}"#),
        before(r#"{"cniVersion":"1.0.0","Name":"a","plugins":[{"type":"one"}]}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","Plugins":[{"type":"one"}]}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"Type":"one"}]}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":""}]}"#),
        before(r#"{"cniVersion":null,"name":"a","plugins":[{"type":"one"}]}"#),
        before(r#"{"cniVersion":"","name":"a","plugins":[{"type":"one"}]}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"one","ipam":[]}]}"#),
        before(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"one","name":5}]}"#),
        before(&with(r#""name":"d","plugins":[{"type":"x"},{"type":"y"}]"#)),
        before(&with(r#""cniVersions":[]"#)),
        before(&with(r#""cniVersions":["1.1.0","0.4.0"]"#)),
        before(&with(r#""cniVersions":"1.1.0""#)),
        before(&with(r#""cniVersions":[1]"#)),
        before(&with(r#""disableGC":"false""#)),
        before(&with(r#""disableCheck":null"#)),
        before(&with(r#""large":1e999"#)),
    ];
    let mut not_text = case("not UTF-8", &[("10.conflist", two)]);
    let bytes = one.replace("\"a\"", "\"a\",\"note\":\"?\"").into_bytes();
    let bytes = bytes.into_iter().map(|byte| if byte == b'?' { 0xff } else { byte }).collect();
    not_text.files.push(("05.conflist".to_owned(), Content::File(bytes)));
    let mut link = case("a link to a directory", &[("10.conflist", two)]);
    link.files.push(("05.conflist".to_owned(), Content::LinkToDirectory));
    cases.extend([not_text, link]);
    cases
}

/// Files with values that libcni 1.2 does not check: it loads them. The agent decides as libcni 1.3 does.
fn cases_of_libcni_1_3() -> Vec<ConfCase> {
    let members = [r#""cniVersions":["v1"]"#, r#""disableGC":"no""#, r#""loadOnlyInlinedPlugins":1"#];
    let file =
        |member| format!(r#"{{"cniVersion":"1.0.0","name":"a","plugins":[{{"type":"one"}}],{member}}}"#);
    members
        .map(|member| case(member, &[("05.conflist", &file(member)), ("10.conflist", &list("b", "two"))]))
        .into()
}

/// Networks that run our plugin, but that ocicni skips, and a later network.
fn skipped_cases() -> Vec<ConfCase> {
    let chains = [
        r#""cniVersion":"1.0.0","plugins":[{"type":"one"},{"type":"missing"},{"type":"mesh"}]"#,
        r#""cniVersion":"1.0.0","plugins":[{"type":"one"},{"type":"../plugins/one"},{"type":"mesh"}]"#,
        r#""cniVersion":"9.0.0","plugins":[{"type":"one"},{"type":"mesh"}]"#,
        r#""cniVersion":"1","plugins":[{"type":"one"},{"type":"mesh"}]"#,
    ];
    chains.map(before_another).into()
}

/// A network that ocicni does not skip, and whose pods are redirected.
fn redirecting_case() -> ConfCase {
    before_another(r#""cniVersion":"1.0.0","plugins":[{"type":"one"},{"type":"mesh"}]"#)
}

/// A network with this chain, before one without our plugin.
fn before_another(chain: &str) -> ConfCase {
    let file = format!(r#"{{"name":"a",{chain}}}"#);
    case(chain, &[("05.conflist", &file), ("10.conflist", &list("b", "two"))])
}

fn write(directory: &Path, case: &ConfCase) {
    let conf = directory.join("net.d");
    fs::create_dir_all(&conf).unwrap();
    for (number, (name, content)) in case.files.iter().enumerate() {
        let (path, target) = (conf.join(name), format!("../target-{number}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match content {
            Content::File(bytes) => fs::write(path, bytes).unwrap(),
            Content::LinkTo(bytes) => {
                if let Some(bytes) = bytes {
                    fs::write(conf.join(&target), bytes).unwrap();
                }
                symlink(target, path).unwrap();
            }
            Content::LinkToDirectory => {
                fs::create_dir(conf.join(&target)).unwrap();
                symlink(target, path).unwrap();
            }
        }
    }
}

/// What the agent predicts of a directory.
struct Prediction {
    choice: Result<ChosenNetwork, NoChoice>,
    /// Whether a pod that is started now is redirected by the plugin `mesh`.
    is_redirected: bool,
}

fn predicted(directory: &Path, case: &ConfCase, libcni: Libcni) -> Prediction {
    let directories = NodeDirectories {
        conf: directory.join("net.d"),
        programs: directory.join("../plugins"),
        results: directory.join("results"),
    };
    let observed = observe(&directories, &ObserveScope::default(), &mut HashCache::default());
    let runtimes = Runtimes {
        crio_network: case.default_network.map(str::to_owned),
        ..Runtimes::of([(Runtime::CriO, Some(libcni.drop_ins()))])
    };
    let judgement = judge(&JudgeInput {
        conf: &observed.conf,
        programs: &observed.programs,
        runtimes: &runtimes,
        plugin: "mesh",
        entry: None,
        fault: None,
        shape: &Shape::Chained { pinned: None },
        confirmed: Confirmed::No,
    });
    let choice = match case.default_network {
        Some(name) => choose_by_name(&observed.conf, name, libcni.drop_ins()),
        None => choose(&observed.conf, Runtime::CriO, libcni.drop_ins()),
    };
    Prediction { choice, is_redirected: judgement.is_redirected() }
}

/// Returns the network that ocicni chooses, and the plugins that it calls for a pod.
fn chosen(host: &SimulatedHost, libcni: Libcni, config: NetworkConfig<'_>, pod: &CrioPod) -> Option<Chosen> {
    let called = host.path(CALLED);
    fs::write(&called, "").unwrap();
    let mut ocicni = Ocicni::start(host, libcni, config, &log());
    let name = ocicni.default_network();
    match ocicni.add(pod) {
        Ok(()) => {
            let types = fs::read_to_string(&called).unwrap().lines().map(str::to_owned).collect();
            Some((name.unwrap(), types))
        }
        Err(error) => {
            assert!(error.contains("no CNI configuration file in"), "{error}");
            None
        }
    }
}

/// Asserts that the agent predicts the choice, and that our plugin is called where the agent reports so.
fn assert_predictions(libcni: Libcni, cases: &[ConfCase]) {
    let host = host_without_runtime();
    let plugins = host.path(PLUGIN_DIR);
    fs::create_dir_all(&plugins).unwrap();
    for kind in TYPES {
        let path = plugins.join(kind);
        fs::write(&path, PLUGIN).unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    let pod = CrioPod::new(&host, &Sandbox::new("shop", "cart"), false);
    let (mut wrong, mut redirected) = (Vec::new(), 0);
    for (number, case) in cases.iter().enumerate() {
        let directory = format!("/run/gybe/{number}");
        write(&host.path(&directory), case);
        let config = NetworkConfig {
            conf_dir: &format!("{directory}/net.d"),
            plugin_dir: PLUGIN_DIR,
            default_network: case.default_network,
        };
        let chosen = chosen(&host, libcni, config, &pod);
        let Prediction { choice, is_redirected } = predicted(&host.path(&directory), case, libcni);
        let is_predicted = match &choice {
            // The agent runs no program of another owner, so ocicni skips networks that the agent chooses.
            Ok(network) => {
                let is_it =
                    chosen == Some((network.network_name().into_owned(), network.network.plugins.clone()));
                is_it != is_skipped(network)
            }
            Err(NoChoice::Nothing) => chosen.is_none(),
            // From inside a container the agent cannot read a link's target.
            Err(NoChoice::Unknown(_)) => {
                case.files.iter().any(|(_, content)| !matches!(content, Content::File(_)))
            }
            Err(NoChoice::Stopped(_)) => false,
        };
        let calls_ours = chosen.iter().any(|(_, types)| types.iter().any(|kind| kind == "mesh"));
        redirected += usize::from(is_redirected);
        if !is_predicted || is_redirected != calls_ours {
            let name = &case.name;
            wrong.push(format!("{name}: {chosen:?}, predicted {choice:?}, redirected: {is_redirected}"));
        }
    }
    println!("{} conf directories, {redirected} of them with redirected pods", cases.len());
    assert!(redirected > 0, "the agent predicts redirected pods nowhere");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Reports whether ocicni skips the network because of a plugin's program, which is missing or does not support the
/// CNI version.
fn is_skipped(choice: &ChosenNetwork) -> bool {
    let LoadedNetwork { plugins, version, .. } = &choice.network;
    let is_supported = version.is_empty() || PLUGIN.contains(&format!(r#""{version}""#));
    !is_supported || plugins.iter().any(|kind| !TYPES.contains(&kind.as_str()))
}

#[test]
fn the_agent_predicts_the_network_that_ocicni_with_libcni_1_2_chooses() {
    let cases = [recorded_cases(), further_cases(), skipped_cases(), vec![redirecting_case()]];
    assert_predictions(Libcni::V1_2, &cases.into_iter().flatten().collect::<Vec<_>>());
}

#[test]
fn the_agent_predicts_the_network_that_ocicni_with_libcni_1_3_chooses() {
    let cases =
        [recorded_cases(), further_cases(), skipped_cases(), vec![redirecting_case()], cases_of_libcni_1_3()];
    assert_predictions(Libcni::V1_3, &cases.into_iter().flatten().collect::<Vec<_>>());
}
