//! containerd on a test node: generations, configuration, and the process.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::process::{HostProcess, Suspended};
use crate::{HarnessError, SimulatedHost};

/// The image of the sandboxes. Only the test node's containerd has it.
pub const PAUSE_IMAGE: &str = "localhost/gybe-pause:1";
/// containerd's persistent directory.
pub const ROOT: &str = "/run/gybe/root";
/// containerd's socket.
pub const SOCKET: &str = "/run/gybe/containerd.sock";
/// The directory of the CNI configuration.
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// Returns the paths and texts of the conf files on a node, with the drop-ins in the networks' directories, which are read
/// last: an entry that moves from a chain to a drop-in is in one of both.
pub fn conf_files(host: &SimulatedHost) -> Result<BTreeMap<String, String>, HarnessError> {
    let mut files = BTreeMap::new();
    let mut directories = VecDeque::from([CONF_DIR.to_owned()]);
    while let Some(directory) = directories.pop_front() {
        let path = host.path(&directory);
        let entries = match fs::read_dir(&path) {
            // Removed meanwhile, as a network's directory is with its last drop-in.
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory != CONF_DIR => continue,
            entries => entries.map_err(HarnessError::file(&path))?,
        };
        for entry in entries {
            let entry = entry.map_err(HarnessError::file(&path))?;
            let name = format!("{directory}/{}", entry.file_name().to_string_lossy());
            match fs::read_to_string(entry.path()) {
                Ok(text) => drop(files.insert(name, text)),
                Err(error) if error.kind() == io::ErrorKind::IsADirectory => directories.push_back(name),
                // Renamed or removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(HarnessError::file(entry.path())(error)),
            }
        }
    }
    Ok(files)
}
/// A runtime handler of containerd, and the directory of its CNI configuration. containerd has the handler if the directory
/// exists when it starts.
pub const HANDLER: &str = "second-network";
pub const HANDLER_CONF_DIR: &str = "/etc/cni/second-network.d";
/// The directory of the CNI plugins.
pub const BIN_DIR: &str = "/opt/cni/bin";

/// The directory of the settings of registries.
const REGISTRIES: &str = "/etc/containerd/certs.d";

const CONFIGURATION: &str = "/run/gybe/containerd.toml";

/// The log message of every generation of containerd once its sockets accept connections.
const BOOTED: &str = "containerd successfully booted";

/// A generation of containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Generation {
    /// 1.6, from Debian 12.
    #[value(name = "1.6")]
    V1_6,
    /// 1.7, from Debian 13.
    #[value(name = "1.7")]
    V1_7,
    /// The newest 2.x in Debian, with reference plugins that implement CNI 1.1.
    #[value(name = "2.x")]
    V2,
}

impl Generation {
    /// The directory that contains `usr/bin`, and `usr/lib/cni` where the generation has plugins of its own.
    fn prefix(self) -> Result<PathBuf, HarnessError> {
        unpacked(match self {
            Generation::V1_6 => "1.6",
            Generation::V1_7 => "1.7",
            Generation::V2 => "2.x",
        })
    }

    /// The directory of `containerd`, `ctr` and the shim.
    pub fn programs(self) -> Result<PathBuf, HarnessError> {
        containing(self.prefix()?.join("usr/bin"), "containerd")
    }

    /// The directory of the reference plugins.
    pub fn reference_plugins(self) -> Result<PathBuf, HarnessError> {
        let directory = match self {
            Generation::V1_6 | Generation::V1_7 => PathBuf::from("/usr/lib/cni"),
            Generation::V2 => self.prefix()?.join("usr/lib/cni"),
        };
        containing(directory, "bridge")
    }

    /// The newest CNI version that both containerd and its reference plugins implement.
    pub fn cni_version(self) -> &'static str {
        match self {
            Generation::V1_6 | Generation::V1_7 => "1.0.0",
            Generation::V2 => "1.1.0",
        }
    }

    /// containerd's configuration file.
    ///
    /// `restrict_oom_score_adj` is for machines without CAP_SYS_RESOURCE, where runc may not lower the score of the
    /// sandbox's process. AppArmor is disabled, so that no profile has to be loaded.
    fn configuration(self, runc: Option<&Path>, has_handler: bool) -> String {
        let version = match self {
            Generation::V1_6 | Generation::V1_7 => 2,
            Generation::V2 => 3,
        };
        let (runtime, cri) = match self {
            Generation::V1_6 | Generation::V1_7 => ("io.containerd.grpc.v1.cri", cri_configuration_1()),
            Generation::V2 => ("io.containerd.cri.v1.runtime", cri_configuration_2()),
        };
        // Handlers in the file replace the default one.
        let default = (runc.is_some() || has_handler).then(|| handler(runtime, "runc", runc, ""));
        let conf_dir = format!("cni_conf_dir = '{HANDLER_CONF_DIR}'\n");
        let second = has_handler.then(|| handler(runtime, HANDLER, runc, &conf_dir));
        let handlers = [default, second].map(Option::unwrap_or_default).concat();
        format!(
            "version = {version}\n\
             root = '{ROOT}'\n\
             state = '/run/gybe/state'\n\
             disabled_plugins = ['io.containerd.internal.v1.opt']\n\
             [grpc]\n\
             address = '{SOCKET}'\n\
             [ttrpc]\n\
             address = '{SOCKET}.ttrpc'\n\
             {cri}\
             {handlers}"
        )
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Generation::V1_6 => "1.6",
            Generation::V1_7 => "1.7",
            Generation::V2 => "2.x",
        })
    }
}

fn cri_configuration_1() -> String {
    format!(
        "[plugins.'io.containerd.grpc.v1.cri']\n\
         sandbox_image = '{PAUSE_IMAGE}'\n\
         restrict_oom_score_adj = true\n\
         disable_apparmor = true\n\
         [plugins.'io.containerd.grpc.v1.cri'.registry]\n\
         config_path = '{REGISTRIES}'\n\
         [plugins.'io.containerd.grpc.v1.cri'.cni]\n\
         bin_dir = '{BIN_DIR}'\n\
         conf_dir = '{CONF_DIR}'\n"
    )
}

fn cri_configuration_2() -> String {
    format!(
        "[plugins.'io.containerd.cri.v1.images'.pinned_images]\n\
         sandbox = '{PAUSE_IMAGE}'\n\
         [plugins.'io.containerd.cri.v1.images'.registry]\n\
         config_path = '{REGISTRIES}'\n\
         [plugins.'io.containerd.cri.v1.runtime']\n\
         restrict_oom_score_adj = true\n\
         disable_apparmor = true\n\
         [plugins.'io.containerd.cri.v1.runtime'.cni]\n\
         bin_dirs = ['{BIN_DIR}']\n\
         conf_dir = '{CONF_DIR}'\n"
    )
}

/// A handler that runs `runc`, or the machine's, with these further settings.
fn handler(plugin: &str, name: &str, runc: Option<&Path>, settings: &str) -> String {
    let table = format!("plugins.'{plugin}'.containerd.runtimes.{name}");
    let options = |runc: &Path| format!("[{table}.options]\nBinaryName = '{}'\n", runc.display());
    let options = runc.map(options).unwrap_or_default();
    format!("[{table}]\nruntime_type = 'io.containerd.runc.v2'\n{settings}{options}")
}

/// Returns a directory that `setup.sh` unpacked: in `runtimes` of the build directory, which is a parent of the
/// running program.
fn unpacked(name: &str) -> Result<PathBuf, HarnessError> {
    let program = std::env::current_exe().map_err(HarnessError::file("/proc/self/exe"))?;
    let found = program
        .ancestors()
        .map(|parent| parent.join("runtimes").join(name))
        .find(|directory| directory.is_dir());
    found.ok_or_else(|| HarnessError::NotInstalled { path: Path::new("target/runtimes").join(name) })
}

fn containing(directory: PathBuf, program: &str) -> Result<PathBuf, HarnessError> {
    let path = directory.join(program);
    if path.is_file() { Ok(directory) } else { Err(HarnessError::NotInstalled { path }) }
}

/// A running containerd.
#[derive(Debug)]
pub struct Containerd(HostProcess);

impl Containerd {
    /// Starts containerd and returns when its sockets accept connections. Its log is appended to `log`.
    ///
    /// It runs `runc`, or the machine's.
    pub fn start(
        host: &SimulatedHost,
        generation: Generation,
        runc: Option<&Path>,
        log: &Path,
    ) -> Result<Self, HarnessError> {
        let programs = generation.programs()?;
        let path = host.path(CONFIGURATION);
        let configuration = generation.configuration(runc, host.path(HANDLER_CONF_DIR).is_dir());
        fs::write(&path, configuration).map_err(HarnessError::file(path))?;
        let mut command = host.command(&programs, programs.join("containerd"));
        command.args(["--config", CONFIGURATION]);
        HostProcess::start_and_wait(command, BOOTED, log).map(Self)
    }

    /// Ends containerd with SIGTERM, as systemd does. Its child processes go on running.
    pub(crate) fn end(&mut self) -> Result<(), HarnessError> {
        self.0.end(Signal::SIGTERM)
    }

    /// Kills containerd with SIGKILL. Its child processes go on running.
    pub fn kill(self) -> Result<(), HarnessError> {
        self.0.stop(Signal::SIGKILL)
    }

    /// Stops containerd until the returned value is dropped. Its child processes go on running.
    pub fn suspend(&self) -> Result<Suspended<'_>, HarnessError> {
        self.0.suspend()
    }

    /// The process id outside the test node's namespaces.
    pub fn pid(&self) -> Result<Pid, HarnessError> {
        self.0.pid()
    }
}
