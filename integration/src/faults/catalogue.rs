//! What can go wrong with a node, and what a pod's owner can try; and what Gybe does then.

/// One line of the catalogue.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// `F05`, `A03`: stands in the names of the tests that show it.
    pub id: &'static str,
    /// What goes wrong, or is tried.
    pub what: &'static str,
    /// What Gybe does then.
    pub then: &'static str,
    /// Why no test shows it, where none does.
    pub untested: Option<&'static str>,
}

const fn fault(id: &'static str, what: &'static str, then: &'static str) -> Fault {
    Fault { id, what, then, untested: None }
}

/// All of it, in the order of ids.
pub const CATALOGUE: [Fault; 51] = [
    fault(
        "F01",
        "the API server is away or slow during an ADD",
        "an ADD opens no connection to it: the runtime's annotations and the agent's cache decide",
    ),
    fault(
        "F02",
        "the agent's token expires or is rotated",
        "it is read again from its file; no token is on the host",
    ),
    fault(
        "F03",
        "a clock is days off",
        "deadlines are counted on the monotonic clock; a token the server will not take is told with its reason",
    ),
    fault(
        "F04",
        "the node starts, and the agent is not up yet",
        "plugin and conf stay on disk; pods outside the mesh and on the host's network pass, a meshed one is refused for now",
    ),
    fault(
        "F05",
        "the primary CNI rewrites its conf file",
        "the entry is put back, one write for each of theirs; a fight over it or over a program is slowed and told with the other side's name",
    ),
    fault(
        "F06",
        "a conf file is empty, cut short or broken by somebody else",
        "it is never written, never fatal, and never made up; the next valid one serves as the runtime would take it",
    ),
    fault(
        "F07",
        "a write of ours is cut by a crash or a power loss",
        "temporary file, fsync, rename, fsync of the directory: the old file or the new one, never a part",
    ),
    fault(
        "F08",
        "the runtime does not notice a new conf file",
        "it is written in the runtime's own directory, in the one way that every generation notices",
    ),
    fault(
        "F09",
        "a program is replaced while the runtime executes it",
        "another file gets its name; the one that runs is never opened for writing",
    ),
    fault(
        "F10",
        "a program arrives damaged, cut short, or for another machine",
        "it is hashed after copying and run once before it gets its name; the one before serves on",
    ),
    fault(
        "F11",
        "a disk is full, read-only or refuses",
        "what was there stays and works; the refusal says where and what to do, and the next pass goes on",
    ),
    fault("F12", "inotify is exhausted", "the directory is looked at once a second instead"),
    fault(
        "F13",
        "the conf directory is removed, renamed, made anew, or a link leads elsewhere",
        "the watch is set again where the path leads now; where a mount holds another, health ends, for only a new start mounts it",
    ),
    fault(
        "F14",
        "the agent is stopped or killed",
        "conf and programs stay as they are; an ADD that needs the agent is refused for now, all else goes on",
    ),
    fault(
        "F15",
        "the plugin is killed during an ADD",
        "rules are one transaction: all or none; whatever is left the next ADD or DEL repairs",
    ),
    fault(
        "F16",
        "one address family is written, the other is refused",
        "one transaction for both; with iptables what was written is put back",
    ),
    fault(
        "F17",
        "the network namespace is gone, is none, or is the host's",
        "DEL succeeds; ADD refuses before any change",
    ),
    fault(
        "F18",
        "the same ADD comes twice, or another one for the same namespace",
        "the same rules are left alone, others replaced in one transaction, somebody else's refused by name; of several at once each waits for the one before",
    ),
    fault("F19", "many ADDs come at once", "no lock is shared between pods"),
    fault(
        "F20",
        "DEL comes without ADD, several times, or before ADD ends",
        "every order succeeds and leaves nothing",
    ),
    fault(
        "F21",
        "rules have changed since they were written",
        "CHECK names each one that is missing, new or another",
    ),
    fault("F22", "somebody holds the xtables lock", "it is waited for until a deadline; nftables takes none"),
    fault(
        "F23",
        "the kernel lacks a module",
        "a probe writes, reads and uses real rules; what is missing is named, and another backend chosen",
    ),
    fault(
        "F24",
        "nft or iptables is not installed",
        "neither is needed; where one was asked for, it is named",
    ),
    fault(
        "F25",
        "netlink drops, cuts or interrupts its answers",
        "what is not acknowledged is not done; a list without its end is no list",
    ),
    fault(
        "F26",
        "somebody flushes or has tables beside ours",
        "tables of others are neither read nor touched",
    ),
    fault(
        "F27",
        "runtime, kubelet or agent restart over and over",
        "nothing is remembered between calls but files that are whole at any time",
    ),
    fault(
        "F28",
        "STATUS says ready though no pod could start",
        "it judges the node's own ability to ADD, from a probe that is kept",
    ),
    fault(
        "F29",
        "Gybe is uninstalled while pods live",
        "a plugin that answers DEL stays for as long as a living sandbox may name it",
    ),
    fault(
        "F30",
        "an upgrade, a downgrade, mixed versions",
        "replaced in one rename; entries of other versions are read",
    ),
    fault("F31", "the runtime's cached result is empty or broken", "DEL needs neither it nor prevResult"),
    fault("F32", "a DEL comes with a configuration of long ago", "every form there ever was is taken"),
    fault(
        "F33",
        "the primary has a .conf, an odd name or an odd version",
        "name, version and every byte outside our entry are kept",
    ),
    fault(
        "F34",
        "input is huge or slow, or nobody reads the answer",
        "sizes and time are bounded; an answer that was not delivered is no success",
    ),
    fault("F35", "the log's reader is stuck or gone", "a line is dropped; no call waits for its log"),
    fault(
        "F36",
        "SELinux, AppArmor or seccomp denies",
        "the refusal says what was denied and what would allow it",
    ),
    fault(
        "F37",
        "directories are missing, read-only or elsewhere",
        "told with the setting that names them; never made up",
    ),
    fault(
        "F38",
        "the cluster has very many pods",
        "the agent asks for its own node's, in pages, and keeps only what decides",
    ),
    fault("F39", "a pod of the same name lived before", "pods are told apart by UID"),
    fault(
        "F40",
        "IPv6 is switched off in a namespace or missing in the kernel",
        "decided for each namespace; IPv6 is not written where there is none, and that is told",
    ),
    fault(
        "A01",
        "text that would become another rule",
        "ports, networks and names are parsed; rules are built of those alone",
    ),
    fault(
        "A02",
        "a value that is valid when looked at and another when used",
        "read once; the text is dropped",
    ),
    fault(
        "A03",
        "lists of a quarter of a megabyte",
        "merged to intervals, bounded by number, and one set in the kernel",
    ),
    fault(
        "A04",
        "names of interfaces with options or wildcards in them",
        "one strict set of characters, 15 bytes",
    ),
    fault(
        "A05",
        "users that are the proxy's, or none",
        "the proxy's ids are checked numbers; root and absent mean 1337",
    ),
    fault(
        "A06",
        "a pod that calls itself the agent",
        "the runtime's annotations decide; a name counts only in the agent's own namespace",
    ),
    fault(
        "A07",
        "ids and paths that lead elsewhere",
        "characters are checked, and what was opened is looked at",
    ),
    fault(
        "A08",
        "links and loose permissions in host directories",
        "never written through, owner and mode checked before trust",
    ),
    fault("A09", "line breaks and huge text for logs and messages", "escaped and cut short"),
    fault("A10", "a call that is held hostage", "every wait has a deadline"),
    fault(
        "A11",
        "an application with NET_ADMIN changes its own pod's rules",
        "out of scope to prevent; CHECK and verify tell",
    ),
];
