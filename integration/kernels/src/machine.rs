//! Boots one kernel in a virtual machine, under qemu's software emulation, and collects the results of its checks.

use gybe_integration::programs::run;
use gybe_kernels::{CheckResult, END, RESULT};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// A kernel that `setup.sh` unpacks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel {
    /// The name of its directory.
    pub(crate) name: &'static str,
    /// Where it comes from.
    pub(crate) suite: &'static str,
    pub(crate) architecture: Architecture,
}

/// An architecture as Debian names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    fn emulator(self) -> [&'static str; 3] {
        match self {
            Self::Amd64 => ["qemu-system-x86_64", "pc", "ttyS0"],
            Self::Arm64 => ["qemu-system-aarch64", "virt", "ttyAMA0"],
        }
    }
}

/// The kernels of `setup.sh`.
pub(crate) const KERNELS: [Kernel; 6] = [
    kernel("5.10", "bullseye-security", Architecture::Amd64),
    kernel("6.1", "bookworm-security", Architecture::Amd64),
    kernel("6.12", "trixie-security", Architecture::Amd64),
    kernel("backports", "trixie-backports", Architecture::Amd64),
    kernel("sid", "sid", Architecture::Amd64),
    kernel("6.12-arm64", "trixie-security", Architecture::Arm64),
];

const fn kernel(name: &'static str, suite: &'static str, architecture: Architecture) -> Kernel {
    Kernel { name, suite, architecture }
}

/// What a machine runs.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) kernel: Kernel,
    /// The name of its log.
    pub(crate) name: String,
    /// Modules that are left out.
    pub(crate) absent: &'static [&'static str],
    /// Modules that are loaded before the checks.
    pub(crate) load: &'static [&'static str],
    /// Further parameters of the kernel and of the init.
    pub(crate) parameters: &'static str,
    /// Groups of checks.
    pub(crate) checks: &'static str,
}

/// The time for one machine, many times what it takes on a quiet one, in seconds.
const DEADLINE: &str = "900";

impl Kernel {
    /// The kernel's own name of its version (`uname -r`).
    ///
    /// # Errors
    /// With the reason, when it could not be fetched.
    pub(crate) fn release(&self, directory: &Path) -> Result<String, String> {
        let text = |name| fs::read_to_string(directory.join(self.name).join(name));
        let release = text("release").map(|release| release.trim().to_owned());
        release.map_err(|_| format!("not fetched: {}", text("missing").unwrap_or_default().trim()))
    }
}

/// A kernel that cannot go on prints it (kernel/panic.c, v6.18).
const PANIC: &str = "Kernel panic - not syncing";

impl Machine {
    /// A machine with a complete kernel.
    pub(crate) fn of_kernel(kernel: &Kernel) -> Self {
        let name = kernel.name.to_owned();
        Self { kernel: *kernel, name, absent: &[], load: &[], parameters: "", checks: "columns,auto" }
    }

    /// Boots it, and returns the results when the machine has switched itself off.
    ///
    /// # Errors
    /// With the reason and the end of the log, when it did not finish.
    pub(crate) fn run(&self, directory: &Path) -> Result<Vec<CheckResult>, String> {
        self.kernel.release(directory)?;
        let initrd =
            self.write_initrd(directory).map_err(|error| format!("cannot write its initrd: {error}"))?;
        let mut booted = self.boot(directory, &initrd);
        // A kernel patches its own instructions while it boots, and an emulated processor may execute one half-written.
        let is_broken = |log: &String| log.contains(PANIC) && !log.contains(RESULT);
        if booted.as_ref().is_ok_and(is_broken) {
            booted = self.boot(directory, &initrd);
        }
        // A machine has tens of megabytes.
        let _removed = fs::remove_file(&initrd);
        let log = booted?.replace('\r', "");
        let path = directory.join("logs").join(&self.name);
        fs::write(&path, &log).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        let unfinished = || format!("it did not finish; the log is {}", path.display());
        if !log.lines().any(|line| line == END) {
            return Err(unfinished());
        }
        let results = log.lines().filter_map(|line| line.strip_prefix(RESULT));
        let results = results.map(serde_json::from_str).collect::<Result<Vec<_>, _>>();
        results.map_err(|error| format!("{}: {error}", unfinished()))
    }

    /// The kernel unpacks one archive after the other.
    fn write_initrd(&self, directory: &Path) -> io::Result<PathBuf> {
        let path = directory.join("logs").join(format!("{}.initrd", self.name));
        let architecture = self.kernel.architecture.name();
        let parts = [
            format!("base-{architecture}.cpio"),
            format!("{}/modules.cpio", self.kernel.name),
            format!("programs-{architecture}.cpio"),
        ];
        fs::create_dir_all(directory.join("logs"))?;
        let mut initrd = File::create(&path)?;
        for part in parts {
            io::copy(&mut File::open(directory.join(part))?, &mut initrd)?;
        }
        Ok(path)
    }

    fn boot(&self, directory: &Path, initrd: &Path) -> Result<String, String> {
        let [emulator, machine, console] = self.kernel.architecture.emulator();
        let kernel = directory.join(self.kernel.name).join("vmlinuz");
        let Self { absent, load, parameters, checks, .. } = self;
        // Without `mitigations=off` a system call takes twice as long; log level 1 keeps the kernel's messages
        // out of the results.
        let parameters = format!(
            "console={console} quiet loglevel=1 panic=-1 mitigations=off rdinit=/init gybe.absent={} gybe.load={} \
             gybe.checks={checks} {parameters}",
            absent.join(","),
            load.join(",")
        );
        let (kernel, initrd) = (kernel.to_string_lossy(), initrd.to_string_lossy());
        // Stock kernels may hang on a nested /dev/kvm.
        let arguments = [
            DEADLINE,
            emulator,
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-M",
            machine,
            "-m",
            "768",
            "-smp",
            "2",
            "-nodefaults",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-no-reboot",
            "-kernel",
            &*kernel,
            "-initrd",
            &*initrd,
            "-append",
            &parameters,
        ];
        let ran = run("timeout", &arguments, "").map_err(|error| format!("{error:?}"))?;
        match ran.code {
            Some(0) => Ok(ran.out),
            Some(124) => Err(format!("it did not finish within {DEADLINE} s\n{}", ran.out)),
            code => Err(format!("{emulator} ended with {code:?}: {}", ran.err)),
        }
    }
}
