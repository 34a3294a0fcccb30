//! The directories that a runtime's configuration names, in files as an operator or a distribution writes them.

use super::*;
use gybe_test_support::TestDir;

struct Host(TestDir);

impl Host {
    fn with(test: &str, files: &[(&str, &str)]) -> Self {
        let root = TestDir::new(&format!("runtime-{test}"));
        for (path, text) in files {
            let path = on_host(&root, Path::new(path));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn configured(&self, name: &str, words: &str) -> RuntimeConfig {
        let arguments: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        configured(&self.0, name, &arguments)
    }

    fn conf_dir(&self, name: &str, words: &str) -> Option<String> {
        Some(self.configured(name, words).conf_dir?.display().to_string())
    }

    fn dirs(&self, name: &str, words: &str) -> Option<Vec<String>> {
        let found = self.configured(name, words).plugin_dirs?;
        Some(found.iter().map(|path| path.display().to_string()).collect())
    }
}

const CONTAINERD: &str = "/etc/containerd/config.toml";
const OF_1: &str = "[plugins.cri.cni]\nbin_dir = \"/a\"\n";
const OF_2: &str = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = \"/a\"\n";
const OF_3: &str = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/a', '/b']\n";

#[test]
fn f37_containerds_plugin_directories_are_read_in_every_version_of_its_configuration() {
    for (text, dirs) in [
        (OF_1, Some(vec!["/a"])),
        (OF_2, Some(vec!["/a"])),
        (OF_3, Some(vec!["/a", "/b"])),
        ("version = 2\n", None),
        ("version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = []\nbin_dir = ''\n", None),
        ("version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = [1]\n", None),
        ("disabled_plugins = [\"cri\"]\n[plugins.cri.cni]\nbin_dir = \"/a\"\n", None),
        ("not = [ toml", None),
    ] {
        let host = Host::with("versions", &[(CONTAINERD, text)]);
        let dirs = dirs.map(|dirs| dirs.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(host.dirs("containerd", "/usr/bin/containerd"), dirs, "{text}");
    }
    let elsewhere = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
    let host = Host::with("flag", &[(CONTAINERD, OF_1), (elsewhere, OF_3)]);
    for words in [format!("containerd -c {elsewhere} -a x"), format!("containerd --config={elsewhere}")] {
        assert_eq!(host.dirs("containerd", &words).unwrap(), ["/a", "/b"], "{words}");
    }
    assert_eq!(host.dirs("containerd", "containerd -c /no/such"), None);
}

#[test]
fn f37_an_imported_file_overrides_and_an_ambiguous_one_yields_nothing() {
    let import = |imports: &str, rest: &str| format!("imports = [{imports}]\n{rest}");
    let other = OF_2.replace("/a", "/c");
    let without = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = 'x'\n";
    let conf_d = "/etc/containerd/conf.d";
    let dirs = |imports: &str, files: &[(&str, &str)]| {
        let main = import(imports, OF_2);
        let paths: Vec<_> = files.iter().map(|(name, text)| (format!("{conf_d}/{name}"), *text)).collect();
        let mut all = vec![(CONTAINERD, main.as_str())];
        all.extend(paths.iter().map(|(path, text)| (path.as_str(), *text)));
        Host::with("imports", &all).dirs("containerd", "containerd")
    };
    let (c, a) = (Some(vec!["/c".to_owned()]), Some(vec!["/a".to_owned()]));
    assert_eq!(dirs("'/etc/containerd/conf.d/*.toml'", &[("1.toml", &other), ("x.bak", "[[[")]), c);
    assert_eq!(dirs("'conf.d/1.toml'", &[("1.toml", &other)]), c, "relative to the importing file");
    assert_eq!(dirs("'/etc/containerd/conf.d/*.toml'", &[]), a);
    assert_eq!(dirs("'/etc/containerd/conf.d/*.toml'", &[("1.toml", "version = 2\n")]), a);
    assert_eq!(
        dirs("'/etc/containerd/conf.d/*.toml'", &[("1.toml", without)]),
        None,
        "the section is replaced or merged, depending on the version"
    );
    assert_eq!(dirs("'/etc/containerd/conf.d/[0-9].toml'", &[("1.toml", &other)]), None);
    assert_eq!(dirs("'/etc/containerd/config.toml'", &[]), None, "a file that imports itself");
}

#[test]
fn f37_what_containerd_loads_for_which_pods_is_read_in_every_version_of_its_configuration() {
    let handler = "cni_conf_dir = '/etc/cni/kata'\ncni_max_conf_num = 1\n";
    let cni = "max_conf_num = 2\nuse_internal_loopback = true\n";
    for (version, section) in [
        ("", "cri"),
        ("version = 2", "\"io.containerd.grpc.v1.cri\""),
        ("version = 3", "'io.containerd.cri.v1.runtime'"),
    ] {
        let text = format!(
            "{version}\n[plugins.{section}.cni]\n{cni}[plugins.{section}.containerd.runtimes.runc]\nruntime_type = 'x'\n\
             [plugins.{section}.containerd.runtimes.kata]\n{handler}"
        );
        let found = Host::with("handlers", &[(CONTAINERD, &text)]).configured("containerd", "containerd");
        let expected = RuntimeConfig {
            internal_loopback: true,
            max_conf_num: Some(2),
            handlers: [("kata".to_owned(), PathBuf::from("/etc/cni/kata"))].into(),
            ..RuntimeConfig::default()
        };
        assert_eq!(found, expected, "{text}");
        let imports = format!("imports = ['x.toml']\n{text}");
        let later = format!("{version}\n[plugins.{section}.cni]\nbin_dir = '/a'\n");
        let files = [(CONTAINERD, imports.as_str()), ("/etc/containerd/x.toml", &later)];
        let found = Host::with("handlers", &files).configured("containerd", "containerd");
        assert_eq!(
            found.handlers, expected.handlers,
            "whether the sections are merged depends on the version"
        );
        assert!(!found.internal_loopback && found.max_conf_num.is_none());
    }
}

#[test]
fn f37_the_last_cri_o_file_that_names_plugin_directories_decides() {
    let (main, drop_in) = ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/10-x.conf");
    let named = "[crio.network]\nplugin_dirs = [\"/opt/cni/bin/\", \"/usr/libexec/cni\"]\n";
    let host = Host::with("crio", &[(main, named), (drop_in, "[crio.runtime]\nlog_level = \"info\"\n")]);
    assert_eq!(host.dirs("crio", "/usr/bin/crio").unwrap(), ["/opt/cni/bin/", "/usr/libexec/cni"]);
    assert_eq!(host.dirs("crio", "/usr/bin/crio --cni-plugin-dir /x"), None);
    let host = Host::with("crio-d", &[(main, named), (drop_in, "[crio.network]\nplugin_dirs = ['/z']\n")]);
    assert_eq!(host.dirs("crio", "crio").unwrap(), ["/z"]);
    assert_eq!(host.dirs("crio", "crio --config-dir /nowhere").unwrap().len(), 2);
    assert_eq!(Host::with("crio-0", &[]).dirs("crio", "crio"), None);
    assert_eq!(host.dirs("dockerd", "dockerd"), None);
    let named = |words: &str| {
        let drop_in = [(drop_in, "[crio.network]\ncni_default_network = 'mesh'\n")];
        Host::with("crio-named", &drop_in).configured("crio", words).default_network
    };
    assert_eq!(named("crio").as_deref(), Some("mesh"));
    assert_eq!(named("crio --cni-default-network other").as_deref(), Some("other"));
    assert_eq!(host.configured("crio", "crio").default_network, None);
}

#[test]
fn f37_the_conf_directory_is_read_from_the_runtimes_configuration() {
    for (text, conf_dir) in [
        (
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '/etc/cni/custom'\n",
            Some("/etc/cni/custom"),
        ),
        ("version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = ''\n", None),
        (OF_1, None),
    ] {
        let host = Host::with("networks", &[(CONTAINERD, text)]);
        assert_eq!(host.conf_dir("containerd", "containerd").as_deref(), conf_dir, "{text}");
    }
    let main = "[crio.network]\nnetwork_dir = '/etc/cni/custom'\n";
    let plugins = "[crio.network]\nplugin_dirs = ['/z']\n";
    let host = Host::with("crio-net", &[("/etc/crio/crio.conf", main), ("/etc/crio/crio.conf.d/1", plugins)]);
    assert_eq!(host.conf_dir("crio", "crio").unwrap(), "/etc/cni/custom");
    assert_eq!(host.conf_dir("crio", "crio --cni-config-dir=/x"), None);
    assert_eq!(host.dirs("crio", "crio --cni-config-dir=/x").unwrap(), ["/z"]);
}
