//! `onearm-lab`: runs scenarios, a demonstration, or a shell in a running lab.

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser, Subcommand};
use onearm_lab::{
    Lab,
    demo::Demonstration,
    lab,
    node::Kind,
    report::Report,
    scenario::{self, Run, Wanted},
    service::Mode,
    shell,
    topology::Arms,
    vm,
};

/// Labs in network namespaces: scenarios that check the pair, a demonstration, and a shell for people.
#[derive(Debug, Parser)]
#[command(name = "onearm-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the scenarios
    List,
    /// Run one scenario and check it
    Run(RunArguments),
    /// A shell in a running lab: servers and pair are up; leaving the shell tears everything down
    Up(UpArguments),
    /// VMs with Debian's kernel 6.1
    #[command(subcommand)]
    Vm(VmCommand),
    /// Show a pair at work: it serves, its Active is killed, service comes back
    Demo(DemoArguments),
}

/// What stands in the nodes' place.
#[derive(Debug, Args)]
struct Nodes {
    /// What runs in the nodes' place: onearm, keepalived, conntrackd, frr or ucarp
    #[arg(long, default_value = "onearm")]
    peer: Kind,
    /// Folder of onearmd and onearm; default: the folder of this program
    #[arg(long)]
    bin_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RunArguments {
    /// Name of a scenario (see `list`)
    name: String,
    /// Print one JSON object instead of lines
    #[arg(long)]
    json: bool,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Runs of each case
    #[arg(long)]
    runs: Option<u32>,
    /// Advert interval, for example 1s or 10ms; default: the scenario's own
    #[arg(long, value_parser = interval)]
    interval: Option<Duration>,
    #[command(flatten)]
    nodes: Nodes,
    /// Only these parts of the scenario, by name, with commas between; a wrong name shows all
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Where products are compared: only these, with commas between
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Packets a second of the traffic, where the scenario leaves it open
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: Option<u32>,
    /// Where flows are shared: do not wait until they are before something happens
    #[arg(long)]
    unsynced: bool,
    /// Keep logs and captures also when all checks held
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Args)]
struct UpArguments {
    /// Which topology: one-arm or two-arms
    #[arg(default_value = "one-arm", value_parser = arms)]
    topology: Arms,
    /// Start servers only, no pair
    #[arg(long)]
    empty: bool,
    /// Mode of the services: dnat or both-nat
    #[arg(long, default_value = "dnat", value_parser = mode)]
    mode: Mode,
    /// Advert interval
    #[arg(long, value_parser = interval, default_value = "1s")]
    interval: Duration,
    #[command(flatten)]
    nodes: Nodes,
}

#[derive(Debug, Args)]
struct DemoArguments {
    /// Advert interval
    #[arg(long, value_parser = interval, default_value = "200ms")]
    interval: Duration,
    #[command(flatten)]
    nodes: Nodes,
}

#[derive(Debug, Subcommand)]
enum VmCommand {
    /// Make the image, if it is not there
    Image {
        /// Make it also if it is there
        #[arg(long)]
        anew: bool,
    },
    /// The console of a VM that has just been started; Ctrl-] ends it
    Up(VmArguments),
    /// Run a command in a new VM; its output and exit code
    Run {
        #[command(flatten)]
        vm: VmArguments,
        /// Seconds after which it is given up
        #[arg(long, default_value_t = 600)]
        limit: u64,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Inside a VM: do what the lab asks for
    #[command(hide = true)]
    Agent {
        /// The port it asks over
        port: PathBuf,
    },
}

#[derive(Debug, Args)]
struct VmArguments {
    /// Processors
    #[arg(long, default_value_t = 1)]
    cpus: u8,
    /// Memory in MiB
    #[arg(long, default_value_t = 1024)]
    memory: u16,
    /// A file that shall be in the VM's /lab; may be given again
    #[arg(long = "file")]
    files: Vec<PathBuf>,
}

/// Reads `1s`, `10ms`.
fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no interval; write for example 1s or 10ms");
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1),
        None => (text.strip_suffix('s').ok_or_else(wrong)?, 1000),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let span = number.checked_mul(unit).filter(|ms| (10..=40_950).contains(ms));
    Ok(Duration::from_millis(span.ok_or_else(wrong)?))
}

/// Reads `dnat`, `both-nat`.
fn arms(word: &str) -> Result<Arms, String> {
    match word {
        "one-arm" => Ok(Arms::One),
        "two-arms" => Ok(Arms::Two),
        _ => Err("there are one-arm and two-arms".to_owned()),
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "dnat" => Ok(Mode::Dnat),
        "both-nat" => Ok(Mode::BothNat),
        _ => Err(format!(
            "no mode of the name {text:?}; there are dnat and both-nat"
        )),
    }
}

/// A sentence to stderr and the exit code of a wrong call.
fn usage(sentence: &str) -> ExitCode {
    eprintln!("onearm-lab: {sentence}");
    ExitCode::from(2)
}

/// The folder that was named, else that of this program.
fn bin_dir(named: Option<PathBuf>) -> Result<PathBuf> {
    match named {
        Some(dir) => Ok(dir),
        None => Ok(std::env::current_exe()?
            .parent()
            .context("this program lies in no folder")?
            .to_owned()),
    }
}

/// 0 only when all checks held.
fn verdict(report: &Report) -> ExitCode {
    if report.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

fn list() -> ExitCode {
    for scenario in scenario::all() {
        println!("{:24} {}", scenario.name, scenario.about);
    }
    ExitCode::SUCCESS
}

fn run(arguments: RunArguments) -> Result<ExitCode> {
    let Some(scenario) = scenario::all().into_iter().find(|s| s.name == arguments.name) else {
        return Ok(usage(&format!(
            "no scenario of the name {}; `onearm-lab list` shows them",
            arguments.name
        )));
    };
    let kind = arguments.nodes.peer;
    if kind != Kind::Onearm && !scenario.for_peers {
        return Ok(usage(&format!(
            "{} asks for what only onearm has, not {kind}",
            scenario.name
        )));
    }
    lab::tear_down_on_signals(false)?;
    let wanted = Wanted {
        seed: arguments.seed,
        runs: arguments.runs,
        interval: arguments.interval,
        kind,
        bin_dir: bin_dir(arguments.nodes.bin_dir)?,
        only: arguments.only,
        peers: arguments.peers,
        rate: arguments.rate,
        unsynced: arguments.unsynced,
        keep: arguments.keep,
    };
    let report = Run::new(scenario.name, wanted, !arguments.json).finish(scenario);
    if lab::is_stopping() {
        // The signal thread ends the process.
        bail!("stopped by a signal");
    }
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        let failed = report.checks.iter().filter(|c| !c.passed).count();
        println!(
            "{}: {} checks, {failed} failed",
            report.scenario,
            report.checks.len()
        );
        if let Some(kept) = &report.kept {
            println!("logs and captures: {kept}");
        }
    }
    Ok(verdict(&report))
}

fn up(arguments: UpArguments) -> Result<ExitCode> {
    lab::tear_down_on_signals(true)?;
    shell::open(&shell::Wanted {
        arms: arguments.topology,
        mode: arguments.mode,
        interval: arguments.interval,
        kind: (!arguments.empty).then_some(arguments.nodes.peer),
        bin_dir: bin_dir(arguments.nodes.bin_dir)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

fn vm(command: VmCommand) -> Result<ExitCode> {
    match command {
        VmCommand::Image { anew } => {
            let image = vm::Image::get(anew)?;
            println!("{}", image.disk().display());
            Ok(ExitCode::SUCCESS)
        }
        VmCommand::Agent { port } => vm::agent::serve(&port).map(|()| ExitCode::SUCCESS),
        VmCommand::Up(arguments) => {
            lab::tear_down_on_signals(false)?;
            let lab = Lab::new()?;
            let machine = boot(&lab, arguments)?;
            eprintln!("Ctrl-] ends it\r");
            vm::console::attach(&machine.console())?;
            machine.power_off()?;
            Ok(ExitCode::SUCCESS)
        }
        VmCommand::Run {
            vm: arguments,
            limit,
            command,
        } => {
            lab::tear_down_on_signals(false)?;
            let lab = Lab::new()?;
            let mut machine = boot(&lab, arguments)?;
            let argv: Vec<&str> = command.iter().map(String::as_str).collect();
            let mut running = machine.channel().start(&argv)?;
            running.end_input()?;
            let code = running.each(Duration::from_secs(limit), |said| {
                match said {
                    vm::Output::Out(bytes) => std::io::stdout().write_all(&bytes)?,
                    vm::Output::Err(bytes) => std::io::stderr().write_all(&bytes)?,
                    vm::Output::Ended(_) | vm::Output::Refused(_) => {}
                }
                Ok(())
            })?;
            machine.power_off()?;
            Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
        }
    }
}

/// A VM without legs.
fn boot(lab: &Lab, arguments: VmArguments) -> Result<vm::Vm> {
    let image = vm::Image::get(false)?;
    let agent = std::env::current_exe()?;
    let mut spec = vm::Spec::new("vm", &agent);
    spec.cpus = arguments.cpus;
    spec.memory = arguments.memory;
    for file in arguments.files {
        let name = file
            .file_name()
            .context("a file without a name")?
            .to_string_lossy()
            .into_owned();
        spec.files.push((file, name));
    }
    vm::Vm::boot(lab, &image, &spec)
}

fn demo(arguments: DemoArguments) -> Result<ExitCode> {
    lab::tear_down_on_signals(false)?;
    let demonstration = Demonstration {
        kind: arguments.nodes.peer,
        bin_dir: bin_dir(arguments.nodes.bin_dir)?,
        interval: arguments.interval,
    };
    let report = demonstration.show();
    if lab::is_stopping() {
        bail!("stopped by a signal");
    }
    println!();
    for check in report.checks.iter().filter(|c| !c.passed) {
        println!("WRONG  {}: {}", check.name, check.detail);
    }
    if let Some(kept) = &report.kept {
        println!("logs and captures: {kept}");
    }
    let held = report.checks.iter().filter(|c| c.passed).count();
    println!(
        "{held} of {} statements held; everything is torn down",
        report.checks.len()
    );
    Ok(verdict(&report))
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    if !matches!(command, Command::List) && !nix::unistd::geteuid().is_root() {
        return usage("needs root, because it makes network namespaces");
    }
    let outcome = match command {
        Command::List => Ok(list()),
        Command::Run(arguments) => run(arguments),
        Command::Up(arguments) => up(arguments),
        Command::Vm(command) => vm(command),
        Command::Demo(arguments) => demo(arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("onearm-lab: {error:#}");
        ExitCode::from(1)
    })
}
