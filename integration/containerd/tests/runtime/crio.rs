//! Pods whose network ocicni makes, with CRI-O's arguments: the agent adds Gybe to the conf file that ocicni watches.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use gybe_containerd_tests::containerd::{BIN_DIR, CONF_DIR};
use gybe_containerd_tests::node::{CONFLIST, agent_log, link_plugins};
use gybe_containerd_tests::{
    Agent, AgentOptions, Conflist, Generation, HarnessError, Sandbox, SimulatedHost, agent, conflist,
    manifest,
};
use gybe_installer::host::observe::DROP_IN;
use gybe_test_support::wait_until;

use crate::fixture::{host_without_runtime, leases, log, program};
use crate::ocicni::{CrioPod, Libcni, NetworkConfig, Ocicni};
use crate::pod::{APPLICATION, Destination, OUTSIDE, OutsideClient, PROXY, RunningPod};

/// The reference plugins that implement CNI 1.1.
const GENERATION: Generation = Generation::V2;
const CONFIG: NetworkConfig<'static> =
    NetworkConfig { conf_dir: CONF_DIR, plugin_dir: BIN_DIR, default_network: None };

/// Returns a node with this conflist, the reference plugins and these plugins.
fn host_with(conflist: &Conflist, plugins: &[&Path]) -> SimulatedHost {
    let host = host_without_runtime();
    link_plugins(&host, GENERATION, plugins).unwrap();
    fs::write(host.path(CONF_DIR).join(CONFLIST), conflist.text(0)).unwrap();
    host
}

fn start_agent(host: &SimulatedHost) -> Agent {
    fs::create_dir_all(host.path(agent::SETTINGS)).unwrap();
    let gybe = program("gybe");
    let options = AgentOptions { image: gybe.parent().unwrap(), wrapper: &[], environment: &[] };
    Agent::start_installing(host, &options, &agent_log(&log())).unwrap()
}

/// Publishes a pod with a proxy and makes its namespace.
fn injected(host: &SimulatedHost, name: &str, passes_annotations: bool) -> CrioPod {
    let sandbox = Sandbox::injected("shop", name);
    manifest::publish(host, &sandbox, &manifest::injected(&sandbox)).unwrap();
    CrioPod::new(host, &sandbox, passes_annotations)
}

fn nft(host: &SimulatedHost, pod: &CrioPod, command: &str) -> Result<String, HarnessError> {
    let (netns, mut arguments) = (pod.id(), vec!["netns", "exec"]);
    arguments.extend([netns.as_str(), "nft"]);
    arguments.extend(command.split(' '));
    host.run(Path::new("ip"), &arguments)
}

/// Makes the network of a pod again and again, until the plugin of Gybe is called for it.
fn wait_until_gybe_is_called(host: &SimulatedHost, ocicni: &mut Ocicni) {
    let pod = injected(host, "first", true);
    wait_until("CRI-O loads the conf file with Gybe", || {
        ocicni.set_up(&pod).unwrap();
        let has_rules = nft(host, &pod, "list table inet gybe").is_ok();
        ocicni.tear_down(&pod).unwrap();
        has_rules
    });
}

fn start_processes(host: &SimulatedHost, ocicni: &mut Ocicni, pod: &CrioPod) -> RunningPod {
    let addresses = ocicni.set_up(pod).unwrap();
    assert_eq!(addresses.len(), 2);
    RunningPod::in_namespace(&host.path(pod.netns()), pod.id(), addresses)
}

fn assert_redirected(pod: &RunningPod, outside: &OutsideClient) {
    for address in pod.addresses.iter().copied() {
        assert_eq!(outside.connect(address, 8080), Destination::proxy(15006, address, 8080));
    }
    for address in OUTSIDE {
        assert_eq!(pod.connect(APPLICATION, address, 80), Destination::proxy(15001, address, 80));
        assert_eq!(pod.connect(PROXY, address, 80), *"outside");
    }
}

fn assert_not_redirected(pod: &RunningPod, outside: &OutsideClient) {
    for address in pod.addresses.iter().copied() {
        assert_eq!(outside.connect(address, 8080), *"app");
    }
    for address in OUTSIDE {
        assert_eq!(pod.connect(APPLICATION, address, 80), *"outside");
    }
}

fn run_on(libcni: Libcni) {
    let host = host_with(&Conflist::reference_plugins(GENERATION), &[]);
    let mut ocicni = Ocicni::start(&host, libcni, CONFIG, &log());
    assert_eq!(ocicni.default_network().as_deref(), Some(conflist::NETWORK));
    let _agent = start_agent(&host);
    wait_until_gybe_is_called(&host, &mut ocicni);
    ocicni.status().unwrap();

    let outside = OutsideClient::on(&host);
    let pods = [true, false].map(|passes_annotations| {
        let pod = injected(&host, &format!("cart-{passes_annotations}"), passes_annotations);
        assert_redirected(&start_processes(&host, &mut ocicni, &pod), &outside);
        let sandbox = Sandbox::new("shop", &format!("plain-{passes_annotations}"));
        manifest::publish(&host, &sandbox, &manifest::plain(&sandbox)).unwrap();
        let plain = CrioPod::new(&host, &sandbox, passes_annotations);
        assert_not_redirected(&start_processes(&host, &mut ocicni, &plain), &outside);
        [pod, plain]
    });

    let [[cart, plain], others] = &pods;
    nft(&host, cart, "delete table inet gybe").unwrap();
    let error = ocicni.check(cart).unwrap_err();
    assert!(error.contains("GYBE-CHECK-"), "{error}");
    ocicni.check(plain).unwrap();
    for pod in [cart, plain] {
        ocicni.tear_down(pod).unwrap();
        ocicni.tear_down(pod).unwrap();
    }
    assert_eq!(leases(&host).len(), 4, "two addresses of each of the two other pods");
    let [cart, _] = others;
    ocicni.collect_garbage(&[cart]).unwrap();
    assert_eq!(leases(&host).len(), 2);
    ocicni.check(cart).unwrap();
}

#[test]
fn pods_of_the_mesh_are_redirected_on_libcni_1_2() {
    run_on(Libcni::V1_2);
}

#[test]
fn pods_of_the_mesh_are_redirected_on_libcni_1_3() {
    run_on(Libcni::V1_3);
}

#[test]
fn a_drop_in_redirects_pods_and_is_not_called_for_check_and_del() {
    let plugin = program("gybe-cni");
    let host = host_with(&Conflist::reference_plugins(GENERATION), &[&plugin]);
    let own = host.path(CONF_DIR).join(conflist::NETWORK);
    fs::create_dir(&own).unwrap();
    fs::write(own.join(DROP_IN), conflist::gybe_with_agent().to_string()).unwrap();
    let _agent = Agent::start_serving(&host, &program("gybe"), &agent_log(&log())).unwrap();
    let mut ocicni = Ocicni::start(&host, Libcni::V1_3, CONFIG, &log());
    let pod = injected(&host, "cart", true);
    assert_redirected(&start_processes(&host, &mut ocicni, &pod), &OutsideClient::on(&host));
    nft(&host, &pod, "delete table inet gybe").unwrap();
    ocicni.check(&pod).unwrap();
    // libcni's cache has the conf file without the drop-in.
    fs::remove_file(host.path(BIN_DIR).join("gybe-cni")).unwrap();
    ocicni.tear_down(&pod).unwrap();
    assert_eq!(leases(&host), [""; 0]);
}

#[test]
fn crio_skips_a_network_whose_program_is_missing_and_loads_it_when_the_program_is_back() {
    let plugin = program("gybe-cni");
    let conflist = Conflist::reference_plugins(GENERATION).with_plugin(conflist::gybe_with_agent());
    let host = host_with(&conflist, &[&plugin]);
    let mut ocicni = Ocicni::start(&host, Libcni::V1_3, CONFIG, &log());
    ocicni.status().unwrap();
    let installed = host.path(BIN_DIR).join("gybe-cni");
    fs::remove_file(&installed).unwrap();
    // ocicni reads the directory again when a file in it changes.
    fs::write(host.path(CONF_DIR).join(CONFLIST), conflist.text(1)).unwrap();
    wait_until("CRI-O drops the network", || ocicni.default_network().is_none());
    symlink(&plugin, &installed).unwrap();
    wait_until("CRI-O loads the network", || ocicni.status().is_ok());
}

#[test]
fn crio_loads_a_conf_file_that_appears_in_a_directory_that_it_made() {
    let host = host_with(&Conflist::reference_plugins(GENERATION), &[]);
    let conf_dir = "/etc/cni/later.d";
    let mut ocicni = Ocicni::start(&host, Libcni::V1_3, NetworkConfig { conf_dir, ..CONFIG }, &log());
    assert_eq!(ocicni.default_network(), None);
    // As the agent writes it: a temporary file that is renamed.
    let directory = host.path(conf_dir);
    fs::write(directory.join("temporary"), Conflist::reference_plugins(GENERATION).text(0)).unwrap();
    fs::rename(directory.join("temporary"), directory.join(CONFLIST)).unwrap();
    wait_until("CRI-O loads the network", || ocicni.default_network().is_some());
    ocicni.status().unwrap();
}
