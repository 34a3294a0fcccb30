//! The installer's core as a process of its own: a pass at each change, until it is killed. It stands
//! in for `gybe node` and knows nothing of its own.

use std::error::Error;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gybe_containerd_tests::{chain, config};
use gybe_installer::install::entry::Entry;
use gybe_installer::install::seen::{FileName, Hash, Places};
use gybe_installer::install::wanted::{
    Install, Leave, Place, Program, PutBack, Shape, TakeOver, Trial, Wanted,
};
use gybe_installer::install::watch::Watch;
use gybe_installer::install::{Memory, pass};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let image = PathBuf::from(words.next().ok_or("no image")?);
    let leaves = words.next().is_some_and(|word| word == "leave");
    let places = Places {
        conf: config::CONF_DIR.into(),
        programs: config::BIN_DIR.into(),
        results: "/var/lib/cni/results".into(),
    };
    let wanted = wanted(&image, leaves)?;
    let (mut memory, mut told) = (Memory::default(), false);
    let mut watch = Watch::new([places.conf.clone(), places.programs.clone()]);
    loop {
        let passed = pass(&places, &wanted, &mut memory)?;
        for fault in &passed.performed.failed {
            writeln!(stderr(), "{fault}")?;
        }
        if passed.left.is_done() && !told {
            told = true;
            writeln!(stderr(), "gybe node: serving")?;
        }
        let wait = passed.fight.and_then(|fight| fight.wait).unwrap_or(Duration::from_secs(600));
        watch.wait(wait, None);
    }
}

fn wanted(image: &Path, leaves: bool) -> Result<Wanted, Box<dyn Error>> {
    let plugin = program(image, "gybe-cni", Trial::CniVersion)?;
    let programs = vec![program(image, "gybe", Trial::Version)?, plugin.clone()];
    if leaves {
        let names = programs.iter().map(|program| program.name.clone()).collect();
        return Ok(Wanted::Left(Leave {
            plugin: "gybe-cni".into(),
            pinned: None,
            programs: names,
            tombstones: vec![plugin],
            put_back: PutBack::Nothing,
        }));
    }
    Ok(Wanted::Installed(Install {
        shape: Shape::Chained { pinned: None },
        entry: Entry::from_value(&chain::gybe())?,
        programs,
        take_over: TakeOver::Waits,
        mode: 0o600,
    }))
}

fn program(image: &Path, name: &str, trial: Trial) -> Result<Program, Box<dyn Error>> {
    let source = image.join(name);
    let hash = Hash::of_all(std::fs::File::open(&source)?)?;
    Ok(Program { name: FileName::new(name)?, source, hash, trial, place: Place::Always })
}
