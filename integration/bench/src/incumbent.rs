//! The ADD of Istio's own `istio-cni` beside Gybe's: one at a time, and 50 at once. `integration/incumbent/setup.sh`
//! builds Istio's program.

use crate::concurrent_adds::run_concurrently;
use crate::measures::{Sample, in_turn};
use crate::pod::{self, CniCall, FACTS, Pod};
use crate::programs::Contender;
use crate::report::{Report, Table, cells};
use gybe_api_server::ApiServer;
use gybe_integration::failure::Failure;
use gybe_integration::programs::run;
use std::path::{Path, PathBuf};
use std::{fs, io};

const CONCURRENT: usize = 50;

/// # Errors
/// When a program is not built or fails, or does not redirect.
pub fn measure(times: usize, rounds: usize) -> Result<Report, Failure> {
    let call = CniCall::new()?;
    let _agent = pod::start_agent(&call)?;
    let cluster = ApiServer::start()?;
    let manifest = fs::read_to_string(call.pods().join("shop/cart-0.json"))?;
    cluster.put_pod(serde_json::from_str(&manifest)?);
    let contenders = contenders(&call, &cluster)?;
    contenders.iter().try_for_each(assert_redirects)?;
    let one = in_turn(times, &contenders, |contender| {
        let pods = pod::new_pods(1)?;
        let pod = pods.first().ok_or_else(|| Failure::new("no namespace"))?;
        Ok::<_, Failure>([contender.run(pod, || ())?.elapsed().as_secs_f64() * 1e3])
    })?;
    let many = in_turn(rounds, &contenders, |one| {
        Ok::<_, Failure>([run_concurrently(one, &pod::new_pods(CONCURRENT)?)?])
    })?;
    let samples: Vec<[Sample; 2]> = one.into_iter().zip(many).map(|([one], [many])| [one, many]).collect();
    Ok(Report { tables: vec![table(&contenders, &samples, times, rounds)?], targets: Vec::new() })
}

/// Returns Gybe over its agent first: the others are compared with it.
fn contenders(call: &CniCall, cluster: &ApiServer) -> Result<Vec<Contender>, Failure> {
    let directory = call.pods().with_file_name("istio-cni");
    fs::create_dir_all(&directory)?;
    fs::rename(cluster.kubeconfig(&directory)?, directory.join("istio-cni-kubeconfig"))?;
    let program = istio_cni()?;
    let istio = |name, native| Contender::cni(name, program.clone(), &call.for_istio(&directory, native));
    let over_agent = call.clone().with_agent(Path::new(FACTS));
    Ok(vec![
        Contender::gybe("Gybe, nft, over its agent", &over_agent)?,
        Contender::gybe("Gybe, nft, manifest in a directory", call)?,
        Contender::gybe(
            "Gybe, iptables-legacy, over its agent",
            &over_agent.clone().with_backend("iptables-legacy"),
        )?,
        istio("istio-cni, nftables", true),
        istio("istio-cni, iptables", false),
    ])
}

/// Returns the path of `istio-cni`: in `incumbent`, beside cargo's directories.
fn istio_cni() -> Result<PathBuf, Failure> {
    let this = std::env::current_exe()?;
    let found = this.ancestors().map(|parent| parent.join("incumbent/istio-cni")).find(|path| path.exists());
    found.ok_or_else(|| Failure::new("there is no istio-cni; run: integration/incumbent/setup.sh"))
}

/// Runs the program once and looks for the proxy's inbound port in the pod's rules: a plugin that leaves the pod alone
/// succeeds too.
fn assert_redirects(contender: &Contender) -> Result<(), Failure> {
    let pods = pod::new_pods(1)?;
    let pod: &Pod = pods.first().ok_or_else(|| Failure::new("no namespace"))?;
    contender.run(pod, || ())?;
    let rules = || {
        let nft = run("nft", &["list", "ruleset"], "")?.out;
        Ok::<_, Failure>(nft + &run("iptables-legacy-save", &[], "")?.out)
    };
    match pod.namespace.run(rules)??.contains("15006") {
        true => Ok(()),
        false => Err(Failure::new(format!("{} did not redirect the pod", contender.name))),
    }
}

fn table(
    contenders: &[Contender],
    samples: &[[Sample; 2]],
    times: usize,
    rounds: usize,
) -> Result<Table, Failure> {
    let gybe = samples.first().map_or([f64::NAN; 2], |samples| samples.each_ref().map(Sample::median));
    let row = |(contender, [one, many]): (&Contender, &[Sample; 2])| {
        let ratio = |sample: &Sample, gybe: f64| format!("{:.1}", sample.median() / gybe);
        vec![
            contender.name.to_owned(),
            one.to_string(),
            ratio(one, gybe[0]),
            many.to_string(),
            ratio(many, gybe[1]),
        ]
    };
    let concurrent = format!("{CONCURRENT} at once, ms");
    Ok(Table {
        title: format!(
            "ADD into a new namespace, median of {times}; {CONCURRENT} at once, median of {rounds} ({})",
            versions()?
        ),
        head: cells(["Program", "one, ms (quartiles)", "x", &concurrent, "x"]),
        rows: contenders.iter().zip(samples).map(row).collect(),
    })
}

/// Returns the date and the versions of the compared programs.
fn versions() -> Result<String, Failure> {
    let first_line = |program: &str, arguments: &[&str]| {
        let output = run(program, arguments, "")?.out;
        let line = output.lines().next().map(str::to_owned);
        line.ok_or_else(|| Failure::from(io::Error::other(format!("{program} printed nothing"))))
    };
    let mut lines = include_str!("../../incumbent/go.mod").lines().map(str::split_whitespace);
    let istio = lines.find_map(|mut words| {
        words.find(|word| *word == "istio.io/istio")?;
        words.next().filter(|version| version.starts_with('v'))
    });
    Ok([
        first_line("date", &["-u", "+%F"])?,
        format!("istio.io/istio {}", istio.unwrap_or("of an unknown version")),
        first_line("iptables", &["--version"])?,
        first_line("nft", &["--version"])?,
    ]
    .join(", "))
}
