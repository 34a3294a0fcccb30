//! `gybe-fuzz-seeds DIRECTORY`: writes the fuzz seeds, in one directory for each target: those of
//! `integration/fuzz/seeds.json`, the CNI protocol vectors, the calls recorded from runtimes, and the examples.

use gybe_integration::failure::Failure;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A call of the plugin; the vectors' other members are what it returned.
#[derive(Deserialize)]
struct Call {
    env: BTreeMap<String, String>,
    /// A string where it is not JSON, or is more than a value.
    #[serde(default)]
    stdin: Value,
}

#[derive(Deserialize)]
struct Recording {
    calls: Vec<Call>,
}

/// A seed of `seeds.json`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seed {
    Text(String),
    /// Lines of hexadecimal digits.
    Bytes(Vec<String>),
}

impl Seed {
    fn bytes(self) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Bytes(lines) => {
                let digits = lines.concat();
                let pairs = (0..digits.len()).step_by(2).map(|at| digits.get(at..at + 2).unwrap_or_default());
                let bytes: Result<Vec<u8>, _> = pairs.map(|pair| u8::from_str_radix(pair, 16)).collect();
                bytes.map_err(|error| Failure::new(format!("a seed is not hexadecimal: {error}")))
            }
        }
    }
}

fn main() -> Result<(), Failure> {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err(Failure::new("usage: gybe-fuzz-seeds DIRECTORY"));
    };
    for (target, seeds) in
        read::<BTreeMap<String, BTreeMap<String, Seed>>>(&package().join("fuzz/seeds.json"))?
    {
        fs::create_dir_all(directory.join(&target))?;
        for (name, seed) in seeds {
            fs::write(directory.join(&target).join(name), seed.bytes()?)?;
        }
    }
    let calls = recorded_calls()?;
    write_seeds(&directory.join("request"), calls.iter().map(Call::request))?;
    write_seeds(&directory.join("args"), calls.iter().filter_map(|call| call.env.get("CNI_ARGS").cloned()))?;
    let manifest = fs::read_to_string(package().join("../examples/pod.json"))?;
    write_seeds(&directory.join("annotations"), std::iter::once(manifest))
}

fn recorded_calls() -> Result<Vec<Call>, Failure> {
    let package = package();
    let mut calls: Vec<Call> = read(&package.join("vectors/cni/protocol.json"))?;
    let files = fs::read_dir(package.join("vectors/runtime"))?.map(|entry| Ok(entry?.path()));
    let files = files.collect::<Result<BTreeSet<_>, Failure>>()?;
    for file in files.iter().filter(|path| path.extension().is_some_and(|extension| extension == "json")) {
        calls.extend(read::<Recording>(file)?.calls);
    }
    calls.push(read(&package.join("../examples/add.json"))?);
    Ok(calls)
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, Failure> {
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

impl Call {
    /// In the form that `targets/request.rs` reads: variables, an empty line, stdin.
    fn request(&self) -> String {
        let variables: String = self.env.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let stdin = match &self.stdin {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            value => value.to_string(),
        };
        format!("{variables}\n{stdin}")
    }
}

fn write_seeds(directory: &Path, seeds: impl Iterator<Item = String>) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    for (number, seed) in seeds.collect::<BTreeSet<_>>().iter().enumerate() {
        fs::write(directory.join(format!("recorded-{number:03}")), seed)?;
    }
    Ok(())
}
