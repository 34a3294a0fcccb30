//! The one judge: decides which conf file the runtime uses, which plugins it runs, and whether a pod that is
//! started now is redirected, and if not, why. Pure. The plan, `/readyz`, the metrics and `gybe doctor` use
//! this decision and make none of their own. A fact that is unknown counts as a reason why the pod is not redirected;
//! only another owner's program counts as executable where it cannot be seen here (`programs`).

mod programs;

use std::ffi::OsStr;

use gybe_plugin::version::SUPPORTED;

use super::auto_shape::auto_shape;
use super::conflist::entry::Entry;
use super::conflist::{ISTIO, PluginChain, as_list, is_network_of};
use super::desired::{Confirmed, Install, Shape};
use super::entries::deciding_differences;
use super::json::{self, JsonValue};
use super::libcni::{
    BrokenFile, BrokenReason, ChosenNetwork, LoadedNetwork, NoChoice, candidates, choose, choose_by_name,
    network,
};
use super::observe::runtimes::{
    ConfiguredDirectory, DropIns, NetworkCount, Possible, ReportWait, Runtime, Runtimes,
};
use super::observe::{
    ConfDirectory, ConfFile, DROP_IN, Directory, DirectoryState, FileFormat, FileName, ORIGINAL,
    ObservedState, ProgramDirectory, Unreadable,
};
use super::problem::{Problem, ProgramFault};

/// The plugins of Multus' thin and thick variant, which call other networks by file or name.
const MULTUS: [&str; 2] = ["multus", "multus-shim"];

/// The observed state of a node, and the shape in which our entry should be there.
#[derive(Debug, Clone, Copy)]
pub struct JudgeInput<'a> {
    pub conf: &'a ConfDirectory,
    pub programs: &'a ProgramDirectory,
    pub runtimes: &'a Runtimes,
    /// The type of our entry, which is its program's name.
    pub plugin: &'a str,
    /// The desired entry; none where the settings are not known.
    pub entry: Option<&'a Entry>,
    pub fault: Option<ProgramFault>,
    pub shape: &'a Shape,
    /// Whether the operator confirmed the program directory.
    pub confirmed: Confirmed,
}

/// Where our entry belongs in another owner's network, and what forbids a write there.
#[derive(Debug, Default)]
pub struct EntrySite<'a> {
    /// The pinned file, or the primary's.
    pub target: Option<EntryTarget<'a>>,
    /// The network in it; none where no runtime can load it.
    pub network: Option<ChosenNetwork>,
    /// Whether an entry would fail every pod: the runtime does not find the plugin, or the plugin refuses every call.
    pub is_refused: bool,
    /// Whether nothing shows that the runtime looks for plugins where ours are placed.
    pub is_unconfirmed: bool,
}

/// The file that is to have our entry.
#[derive(Debug)]
pub struct EntryTarget<'a> {
    pub name: FileName,
    pub file: &'a ConfFile,
    /// None if it contains no network.
    pub format: Option<FileFormat>,
}

impl EntryTarget<'_> {
    /// Returns the network in the file alone, without drop-ins.
    fn network_of_file(&self) -> Option<ChosenNetwork> {
        let bytes = self.file.content.as_ref().ok()?;
        let network = network(self.format?, bytes, &[]).ok()?;
        Some(ChosenNetwork { file: self.name.clone(), network })
    }
}

/// The verdict for a pod that is started now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judgement {
    /// The file that every runtime that may run here uses; none where they differ, or use none.
    pub in_use: Option<ChosenNetwork>,
    /// Why the pod is not redirected.
    pub reasons: Vec<Problem>,
    /// Problems that prevent no pod's redirection.
    pub notes: Vec<Problem>,
}

impl Judgement {
    /// Reports whether a pod that is started now is redirected.
    #[must_use]
    pub fn is_redirected(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// Judges for every runtime that may run here. With several, a pod has to be redirected under each.
#[must_use]
pub fn judge(question: &JudgeInput<'_>) -> Judgement {
    let mut judgement =
        Judgement { reasons: directory_problems(question.conf, question.programs), ..Judgement::default() };
    judgement.reasons.extend(question.own_program());
    if question.conf.state != DirectoryState::Present {
        return judgement;
    }
    if question.conf.is_of_multus && matches!(question.shape, Shape::Standalone { .. }) {
        judgement.reasons.extend(question.network_of_ours().err());
        return judgement;
    }
    let elsewhere = elsewhere(question);
    let is_elsewhere = !elsewhere.is_empty();
    judgement.reasons.extend(elsewhere);
    let mut in_use = Vec::new();
    for possible in &question.runtimes.possible {
        let (choice, reasons) = question.under(*possible);
        in_use.push(choice);
        // No entry is written to a directory that the runtime does not use.
        let follows = |reason: &Problem| is_elsewhere && reason.is_entry_pending();
        let new =
            reasons.into_iter().filter(|reason| !judgement.reasons.contains(reason) && !follows(reason));
        judgement.reasons.extend(new.collect::<Vec<_>>());
    }
    // The file on which the network waits is there, and broken.
    if judgement.reasons.iter().any(|reason| matches!(reason, Problem::BrokenFirst(_))) {
        judgement.reasons.retain(|reason| *reason != Problem::Waiting);
    }
    let same_file = |choices: &[Option<ChosenNetwork>]| {
        let file = |choice: &Option<ChosenNetwork>| choice.as_ref().map(|choice| choice.file.clone());
        choices.windows(2).all(|pair| matches!(pair, [one, other] if file(one) == file(other)))
    };
    judgement.in_use = if same_file(&in_use) { in_use.into_iter().next().flatten() } else { None };
    judgement.notes = passed_over(question.conf, &judgement);
    let handlers = question.runtimes.handlers_elsewhere.iter().cloned();
    let handlers = handlers.map(|(handler, directory)| Problem::HandlerElsewhere { handler, directory });
    match question.confirmed {
        Confirmed::Yes => judgement.notes.extend(handlers),
        Confirmed::No => judgement.reasons.extend(handlers),
    }
    judgement
}

/// The problems of the two directories themselves.
#[must_use]
pub fn directory_problems(conf: &ConfDirectory, programs: &ProgramDirectory) -> Vec<Problem> {
    let directories = [(programs.state, Directory::Programs), (conf.state, Directory::Conf)];
    let problem = |(state, directory)| match state {
        DirectoryState::Present => None,
        DirectoryState::Missing => Some(Problem::Missing(directory)),
        DirectoryState::Deleted => Some(Problem::Deleted(directory)),
        DirectoryState::Unreadable(why) => Some(Problem::Unreadable(directory, why)),
    };
    directories.into_iter().filter_map(problem).collect()
}

/// Returns the primary's network, whose chain is to be extended: that of the first file that a runtime can load. Files
/// that libcni refuses are skipped, although containerd loads nothing until they are repaired. A file that cannot be
/// read ends the search. A network that consists only of a mesh's plugin is not a primary's.
#[must_use]
pub fn primary(conf: &ConfDirectory, plugin: &str, runtimes: &Runtimes) -> Option<ChosenNetwork> {
    let reads = runtimes.possible.iter().any(|possible| possible.drop_ins == DropIns::Loaded);
    let drop_ins = if reads { DropIns::Loaded } else { DropIns::Ignored };
    let is_crio = runtimes.possible.iter().all(|possible| possible.runtime == Runtime::CriO);
    let named = runtimes.crio_network.as_deref().filter(|_| is_crio);
    for candidate in candidates(conf, drop_ins) {
        match candidate {
            Ok(choice) if named.is_some_and(|name| choice.network_name() != name) => {}
            Ok(choice) if primaries(&choice.network, plugin).is_empty() => {}
            Ok(choice) => return Some(choice),
            Err(broken) if broken.is_unread() => return None,
            Err(_) => {}
        }
    }
    None
}

/// Finds the pinned file. As with istio-cni, a name that ends in `.conf` also selects the `.conflist` if only that
/// exists, and the reverse.
fn pinned_file(conf: &ConfDirectory, pinned: &FileName) -> Option<FileName> {
    let single = pinned.ended(".conflist", ".conf");
    let names = [pinned.clone()].into_iter().chain(as_list(pinned)).chain(single);
    names.into_iter().find(|name| conf.files.contains_key(name))
}

/// The format of a file for our entry. A pinned file may have any name, so its content decides; none if it contains no
/// network.
fn format_of(name: &FileName, bytes: &[u8]) -> Option<FileFormat> {
    let tree = json::parse(bytes).ok()?;
    let is_single = tree.field("type").and_then(JsonValue::as_text).is_some();
    match FileFormat::of(name.as_os_str()) {
        Some(FileFormat::List) => Some(FileFormat::List),
        Some(FileFormat::Single) if is_single => Some(FileFormat::Single),
        _ if PluginChain::read(bytes).is_ok() => Some(FileFormat::List),
        _ if is_single => Some(FileFormat::Single),
        _ => None,
    }
}

/// Our directories that the runtimes' configuration does not name (F37): a chain that names our plugin fails
/// every pod where the runtime does not find it.
fn elsewhere(question: &JudgeInput<'_>) -> Vec<Problem> {
    if is_settled(question) {
        return Vec::new();
    }
    let Runtimes { plugin_directory, conf_directory, .. } = question.runtimes;
    let others = |directory: &ConfiguredDirectory| match directory {
        ConfiguredDirectory::Others(others) => Some(others.clone()),
        _ => None,
    };
    let plugins = others(plugin_directory).map(Problem::PluginsElsewhere);
    plugins.into_iter().chain(others(conf_directory).map(Problem::NetworksElsewhere)).collect()
}

/// Returns a problem if our plugin refuses every pod of the network, because it does not support its CNI version.
fn unsupported(choice: &ChosenNetwork) -> Option<Problem> {
    let version = choice.network.version.as_str();
    let is_supported = version.is_empty() || SUPPORTED.contains(&version);
    let (file, version) = (choice.file.clone(), version.chars().take(32).collect());
    (!is_supported).then_some(Problem::UnsupportedVersion { file, version })
}

/// Reports whether the operator confirmed the directories, or the conf directory is Multus' own, which no
/// runtime reads.
fn is_settled(question: &JudgeInput<'_>) -> bool {
    question.confirmed == Confirmed::Yes || question.conf.is_of_multus
}

/// Returns a problem if nothing shows that the runtime looks for plugins where ours are placed (F37).
#[must_use]
pub fn unconfirmed(question: &JudgeInput<'_>, choice: &ChosenNetwork) -> Option<Problem> {
    if is_settled(question) {
        return None;
    }
    match question.runtimes.plugin_directory {
        ConfiguredDirectory::Unknown if question.runtimes.waits == ReportWait::Entry => {
            return Some(Problem::Unreported);
        }
        ConfiguredDirectory::Unknown => {}
        ConfiguredDirectory::Named | ConfiguredDirectory::Others(_) => return None,
    }
    let plugins = primaries(&choice.network, question.plugin);
    let is_there = |kind: &String| question.programs.names.contains_key(OsStr::new(kind));
    let file = choice.file.clone();
    (!plugins.iter().any(is_there)).then_some(Problem::PluginDirUnconfirmed { file, plugins })
}

/// The plugins of a network that are not a mesh's.
fn primaries(network: &LoadedNetwork, plugin: &str) -> Vec<String> {
    network.plugins.iter().filter(|kind| *kind != plugin && *kind != ISTIO).cloned().collect()
}

fn has_multus(choice: &ChosenNetwork) -> bool {
    choice.network.plugins.iter().any(|kind| MULTUS.contains(&kind.as_str()))
}

/// Files that no runtime can load and that stop none. Files that sort after the one in use have no effect.
fn passed_over(conf: &ConfDirectory, judgement: &Judgement) -> Vec<Problem> {
    let Some(in_use) = &judgement.in_use else { return Vec::new() };
    let all = candidates(conf, DropIns::Loaded).filter_map(Result::err);
    let before = all.take_while(|broken| broken.file < in_use.file);
    before.filter(|broken| !broken.is_unread()).map(Problem::Broken).collect()
}

impl<'a> JudgeInput<'a> {
    /// The input for a desired state.
    #[must_use]
    pub fn new(install: &'a Install, observed: &'a ObservedState) -> Self {
        Self {
            conf: &observed.conf,
            programs: &observed.programs,
            runtimes: &observed.runtimes,
            plugin: install.entry.plugin(),
            entry: Some(&install.entry),
            fault: program_fault(install, observed),
            shape: install.shape.fixed().unwrap_or_else(|| auto_shape(install, observed).shape),
            confirmed: install.confirmed,
        }
    }

    /// Where our entry belongs; nowhere for a network of our own.
    #[must_use]
    pub fn entry_site(&self) -> EntrySite<'a> {
        if matches!(self.shape, Shape::Standalone { .. }) {
            return EntrySite::default();
        }
        let network = self.network_for_entry();
        let name = match self.shape {
            Shape::Chained { pinned: Some(pinned) } => pinned_file(self.conf, pinned),
            _ => network.as_ref().map(|network| network.file.clone()),
        };
        let target = name.and_then(|name| {
            let file = self.conf.files.get(&name)?;
            let format = file.content.as_ref().ok().and_then(|bytes| format_of(&name, bytes));
            Some(EntryTarget { name, file, format })
        });
        let is_unsupported = network.as_ref().and_then(unsupported).is_some();
        // The program of a drop-in does not show that the runtime looks there for those of the file.
        let of_file = match self.shape {
            Shape::Chained { .. } => target.as_ref().and_then(EntryTarget::network_of_file),
            Shape::DropIn | Shape::Standalone { .. } => None,
        };
        let confirming = of_file.as_ref().or(network.as_ref());
        EntrySite {
            is_refused: is_unsupported || !elsewhere(self).is_empty(),
            is_unconfirmed: confirming.is_some_and(|network| unconfirmed(self, network).is_some()),
            target,
            network,
        }
    }
}

/// Another build than the desired one is accepted once it has answered VERSION.
fn program_fault(install: &Install, observed: &ObservedState) -> Option<ProgramFault> {
    let name = OsStr::new(install.entry.plugin());
    let Some(there) = observed.programs.files.get(name) else { return Some(ProgramFault::Missing) };
    let mut ours = install.programs.iter().filter(|program| program.name.as_os_str() == name);
    let is_right = ours.any(|program| there.hash == Ok(program.hash)) || observed.answering.contains(name);
    ProgramFault::of(there.access, observed.us).or_else(|| (!is_right).then_some(ProgramFault::Another))
}

impl JudgeInput<'_> {
    /// The network of another owner that is to have our entry: the pinned file's, or the primary's.
    fn network_for_entry(&self) -> Option<ChosenNetwork> {
        match self.shape {
            Shape::Standalone { .. } => None,
            Shape::Chained { pinned: Some(pinned) } => {
                let file = pinned_file(self.conf, pinned)?;
                let bytes = self.conf.files.get(&file)?.content.as_ref().ok()?;
                let network = network(format_of(&file, bytes)?, bytes, &[]).ok()?;
                Some(ChosenNetwork { file, network })
            }
            Shape::Chained { pinned: None } | Shape::DropIn => primary(self.conf, self.plugin, self.runtimes),
        }
    }

    fn under(&self, Possible { runtime, drop_ins }: Possible) -> (Option<ChosenNetwork>, Vec<Problem>) {
        let named = self.runtimes.crio_network.as_deref().filter(|_| runtime == Runtime::CriO);
        let chosen = match named {
            Some(name) => choose_by_name(self.conf, name, drop_ins),
            None => choose(self.conf, runtime, drop_ins),
        };
        match chosen {
            Ok(choice) => {
                let mut reasons = self.of(&choice, drop_ins);
                match self.further_networks(runtime, drop_ins) {
                    Ok(further) => {
                        let all = further.iter().chain([&choice]);
                        reasons.extend(all.flat_map(|network| self.other_programs(network, runtime)));
                    }
                    Err(broken) => reasons.push(broken),
                }
                (Some(choice), reasons)
            }
            Err(NoChoice::Nothing) => (
                None,
                vec![
                    named
                        .map_or(Problem::Waiting, |name| Problem::NoDefaultNetwork { name: name.to_owned() }),
                ],
            ),
            Err(NoChoice::Stopped(broken)) => (None, vec![Problem::BrokenFirst(broken)]),
            Err(NoChoice::Unknown(BrokenFile {
                file,
                why: BrokenReason::Unreadable(Unreadable::TooLarge(length)),
            })) => (None, vec![Problem::TooLarge { file, length }]),
            Err(NoChoice::Unknown(broken)) => (None, vec![Problem::UnreadableFirst(broken)]),
        }
    }

    fn of(&self, choice: &ChosenNetwork, drop_ins: DropIns) -> Vec<Problem> {
        if primaries(&choice.network, self.plugin).is_empty() {
            return vec![Problem::NoPrimary(choice.file.clone())];
        }
        let has_entry = choice.network.plugins.iter().any(|kind| kind == self.plugin);
        let refused = if has_entry {
            unsupported(choice)
        } else {
            self.network_for_entry().as_ref().and_then(unsupported)
        };
        if let Some(problem) = refused {
            return vec![problem];
        }
        let mut reasons: Vec<_> = unconfirmed(self, choice).into_iter().collect();
        if has_entry {
            if choice.network.plugins.iter().any(|kind| kind == ISTIO) {
                reasons.push(Problem::BothEntries(choice.file.clone()));
            }
            reasons.extend(
                self.entries_run(choice, drop_ins).find_map(|(file, entry)| self.wrong_entry(file, entry)),
            );
        } else {
            reasons.extend(self.missed(choice, drop_ins));
        }
        reasons
    }

    /// The networks that containerd attaches a pod to besides the first.
    fn further_networks(&self, runtime: Runtime, drop_ins: DropIns) -> Result<Vec<ChosenNetwork>, Problem> {
        let most = match self.runtimes.several_networks.filter(|_| runtime == Runtime::Containerd) {
            None => 1,
            Some(NetworkCount::AtMost(most)) => most,
            Some(NetworkCount::All) => usize::MAX,
        };
        let broken = |broken: BrokenFile| match broken.is_unread() {
            true => Problem::UnreadableFirst(broken),
            false => Problem::BrokenFurther(broken),
        };
        candidates(self.conf, drop_ins).take(most).skip(1).map(|it| it.map_err(broken)).collect()
    }

    /// Why a network without our entry does not reach our plugin; none if Multus calls our network too.
    fn missed(&self, choice: &ChosenNetwork, drop_ins: DropIns) -> Option<Problem> {
        let (file, plugins) = (choice.file.clone(), choice.network.plugins.clone());
        match self.shape {
            Shape::Standalone { file: ours } => {
                let problem = self.network_of_ours().err();
                let not_multus = || Problem::NotMultus { file: ours.clone(), by: file, plugins };
                problem.or_else(|| (!has_multus(choice)).then(not_multus))
            }
            Shape::Chained { pinned: Some(_) } if self.file_with_entry().is_some() => {
                let pinned = self.file_with_entry()?;
                if !has_multus(choice) {
                    return Some(Problem::Preempted { file: pinned.clone(), by: file });
                }
                self.entries_in(pinned).find_map(|(file, entry)| self.wrong_entry(file, entry))
            }
            _ => {
                let network = FileName::new(choice.network.name.as_str()).ok();
                let ours = network.filter(|it| self.has_drop_in(it)).filter(|_| drop_ins == DropIns::Ignored);
                let reads = |possible: &Possible| possible.drop_ins == DropIns::Loaded;
                Some(match ours {
                    Some(network) if self.runtimes.possible.iter().any(reads) => {
                        Problem::UnseenDropIn(network)
                    }
                    Some(network) => Problem::DropInIgnored(network),
                    None => Problem::NoEntry { file, plugins, plugin: self.plugin.to_owned() },
                })
            }
        }
    }

    fn has_drop_in(&self, network: &FileName) -> bool {
        let files = self.conf.networks.get(network);
        let ours = files.and_then(|files| files.get(OsStr::new(DROP_IN)));
        ours.and_then(|file| file.content.as_ref().ok())
            .is_some_and(|bytes| is_network_of(bytes, self.plugin))
    }

    fn file_with_entry(&self) -> Option<&FileName> {
        let files = self.conf.files.iter().filter(|(name, _)| !name.ends_in(ORIGINAL));
        let mut named = files.filter_map(|(name, file)| Some((name, file.content.as_ref().ok()?)));
        let has =
            |bytes: &[u8]| PluginChain::read(bytes).is_ok_and(|chain| chain.entry(self.plugin).is_some());
        named.find(|(_, bytes)| has(bytes)).map(|(name, _)| name)
    }

    /// Checks that our own network is there for Multus.
    fn network_of_ours(&self) -> Result<(), Problem> {
        let Shape::Standalone { file } = self.shape else { return Ok(()) };
        let bytes = self.conf.files.get(file).and_then(|file| file.content.as_ref().ok());
        let bytes = bytes.filter(|bytes| is_network_of(bytes, self.plugin));
        let bytes = bytes.ok_or_else(|| Problem::NoNetwork(file.clone()))?;
        self.wrong_entry(file, bytes).map_or(Ok(()), Err)
    }

    /// Our entries that the runtime runs for this network: those of the file, and then drop-ins.
    fn entries_run<'b>(
        &'b self,
        choice: &'b ChosenNetwork,
        drop_ins: DropIns,
    ) -> impl Iterator<Item = (&'b FileName, &'b [u8])> {
        let listed = self.entries_in(&choice.file);
        let reads = [choice.network.drop_ins, drop_ins] == [DropIns::Loaded; 2];
        let network = self.conf.networks.get(OsStr::new(&choice.network.name)).filter(|_| reads);
        let files = network.into_iter().flatten().filter(|(name, _)| name.ends_in(".conf"));
        let files = files.filter_map(|(name, file)| Some((name, file.content.as_deref().ok()?)));
        listed.chain(files.filter(|(_, bytes)| is_network_of(bytes, self.plugin)))
    }

    fn entries_in<'b>(&'b self, file: &'b FileName) -> impl Iterator<Item = (&'b FileName, &'b [u8])> {
        let bytes = self.conf.files.get(file).and_then(|file| file.content.as_ref().ok());
        let chain = bytes.and_then(|bytes| PluginChain::read(bytes).ok());
        let entries: Vec<_> = chain.iter().flat_map(|chain| chain.entries(self.plugin)).collect();
        entries.into_iter().map(move |entry| (file, entry))
    }

    /// Why our entry does not redirect pods by the settings in force.
    fn wrong_entry(&self, file: &FileName, entry: &[u8]) -> Option<Problem> {
        let file = file.clone();
        match deciding_differences(entry, self.entry.map(Entry::text)) {
            Err(why) => Some(Problem::BadEntry { file, why: why.to_string() }),
            Ok(keys) => (!keys.is_empty()).then_some(Problem::OtherSettings { file, keys }),
        }
    }
}

#[cfg(test)]
mod tests;
