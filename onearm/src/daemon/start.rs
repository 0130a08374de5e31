//! From the command line to a running node, and back.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use clap::Parser as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use onearm_dataplane::Dataplane;
use onearm_netcfg::{Kernel, Netcfg, Place, StateDir};
use onearm_types::GroupId;
use sha2::Digest as _;
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;

use crate::cli::Exit;
use crate::config::{self, Loaded, PairConfig};
use crate::control::{ControlServer, Severity};
use crate::health::{self, Health};
use crate::script;

use super::authentication::Authentication;
use super::backend::Backend;
use super::beside::Beside;
use super::board::Board;
use super::epochs::Epochs;
use super::errands::Errands;
use super::gates::Gates;
use super::helping::Helping;
use super::keeper::Keeper;
use super::legs::lock;
use super::node::Node;
use super::node_loop::{self, Files, Inputs};
use super::options::Options;
use super::owned::Store;
use super::recording::Recording;
use super::scripts::Scripts;
use super::streaming::Streaming;
use super::{clock, ha_process, stance};

/// Orders of operators that wait; one more makes its connection wait.
const ORDERS: usize = 4;
/// Descriptors wanted: health checks, control connections, links, and some more.
const DESCRIPTORS: u64 = 16_384;

/// `onearmd`: the daemon, its HA process, or the putting back of what a dead daemon left behind.
pub fn main() -> ExitCode {
    if let Some(code) = script::as_script() {
        return code;
    }
    let options = Options::parse();
    if options.ha_process {
        return ha_process::run();
    }
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    run(&options)
}

fn run(options: &Options) -> ExitCode {
    if options.restore {
        return restore(&options.state_dir);
    }
    let loaded = match config::load(&options.node, &options.pair) {
        Ok(loaded) => loaded,
        Err(refused) => {
            eprintln!("{refused}");
            return Exit::BadConfiguration.into();
        }
    };
    for warning in &loaded.warnings {
        tracing::warn!(%warning, "configuration");
    }
    raise_descriptor_limit();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("onearmd: no runtime: {error}");
            return Exit::Internal.into();
        }
    };
    match runtime.block_on(serve(options, loaded)) {
        Ok(()) => Exit::Ok.into(),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "onearmd ends");
            eprintln!("onearmd: {error:#}");
            if error.chain().any(is_in_use) {
                Exit::Refused.into()
            } else {
                Exit::Internal.into()
            }
        }
    }
}

/// Checks of many servers hold a descriptor each.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard.min(DESCRIPTORS), hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}

fn is_in_use(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<onearm_netcfg::Error>()
        .is_some_and(|e| matches!(e, onearm_netcfg::Error::InUse { .. }))
}

/// `onearmd --restore`: gates, guard rules, settings, offloads. One line for each thing.
fn restore(state_dir: &Path) -> ExitCode {
    let put_back = || -> anyhow::Result<Vec<String>> {
        let mut state = StateDir::acquire(state_dir)?;
        let mut failed = Gates::open(state_dir, Place::here()?)?.remove_all();
        let restored = Kernel::open()?.undo(&mut state);
        for line in &restored.lines {
            println!("{line}");
        }
        failed.extend(restored.errors.iter().map(ToString::to_string));
        Ok(failed)
    };
    match put_back() {
        Ok(failed) if failed.is_empty() => Exit::Ok.into(),
        Ok(failed) => {
            for error in failed {
                eprintln!("onearmd --restore: {error}");
            }
            Exit::Internal.into()
        }
        Err(error) => {
            eprintln!("onearmd --restore: {error:#}");
            if error.chain().any(is_in_use) {
                Exit::Refused.into()
            } else {
                Exit::Internal.into()
            }
        }
    }
}

fn files(options: &Options) -> Files {
    Files {
        node: options.node.clone(),
        pair: options.pair.clone(),
        state_dir: options.state_dir.clone(),
    }
}

/// Where a scraper may ask. Nothing hangs on it: a port that is taken is told.
fn listen(address: SocketAddr, board: &Board) -> Option<TcpListener> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener
        .inspect_err(|error| {
            let text = format!("no metrics at {address}: {error}");
            board.warn("metrics", vec![text.clone()]);
            let remedy = "write another port as metrics in node.toml, or \"off\", and restart onearmd";
            board.record(Severity::Warning, "no-metrics", text, remedy);
        })
        .ok()
}

async fn serve(options: &Options, mut loaded: Loaded) -> anyhow::Result<()> {
    let started_ns = clock::monotonic_ns();
    let auth = loaded.keys.take().map(|keys| Authentication {
        keys,
        rollout: loaded.pair.ha.rollout,
        epoch: 0,
    });
    let loaded = Arc::new(loaded);
    std::fs::create_dir_all(&options.run_dir)
        .with_context(|| format!("cannot make the run directory {}", options.run_dir.display()))?;
    let state_dir = StateDir::acquire(&options.state_dir)?;
    let place = state_dir.place().clone();
    let gates =
        Gates::open(&options.state_dir, place).context("the journal of egress gates cannot be read")?;
    let board = Arc::new(Board::new(loaded.node.priority, loaded.node.peer.address));

    let mut dataplane = load(&loaded, auth.as_ref()).await?;
    let lease = dataplane.lease_cell(GroupId::FIRST)?;
    let events = dataplane
        .take_events()
        .map(onearm_dataplane::Events::into_stream)
        .transpose()?;
    let flows = dataplane.flows();
    let helper = dataplane.helper()?;

    let (netcfg, netcfg_events) = Netcfg::start(state_dir)?;
    let (checks, checking) = Health::new(clock::wall_ms(), health::DEFAULT_CAPACITY);
    tokio::spawn(checking);
    checks.configure(health::specs(&loaded.pair));

    // Without authentication there is nobody to tell.
    let tells = auth
        .as_ref()
        .and_then(|_| dataplane.take_tells())
        .map(|ring| anyhow::Ok((ring, loaded.node.id, dataplane.lease_cell(GroupId::FIRST)?)))
        .transpose()?;
    let dataplane = Arc::new(Mutex::new(dataplane));
    let (keeper, flow_sync) = Keeper::start(Arc::clone(&flows), Arc::clone(&board), tells)?;
    let streaming = auth
        .as_ref()
        .map(|auth| Streaming::start(&loaded, &auth.keys, keeper.port()))
        .transpose()?;
    let errands = streaming
        .as_ref()
        .map(|streaming| Errands::new(streaming.voice.clone(), Arc::clone(&loaded), Arc::clone(&board)));
    let (orders, ordered) = mpsc::channel(ORDERS);
    let backend = Arc::new(Backend {
        loaded: Arc::clone(&loaded),
        board: Arc::clone(&board),
        dataplane: Arc::clone(&dataplane),
        flows,
        lease: lock(&dataplane).lease_cell(GroupId::FIRST)?,
        health: checks.clone(),
        errands: errands.clone(),
        stream: streaming.as_ref().map(|streaming| streaming.view.clone()),
        sync: flow_sync.as_ref().map(|sync| sync.view.clone()),
        started_ns,
        orders,
    });
    let group = options.group.as_deref().or(loaded.node.control_group.as_deref());
    let bind = || ControlServer::bind(&options.run_dir, group);
    let metrics = loaded.node.metrics.and_then(|address| listen(address, &board));
    let beside = Beside::start(bind, metrics, backend)
        .with_context(|| format!("cannot listen in {}", options.run_dir.display()))?;

    let again = {
        let dataplane = Arc::clone(&dataplane);
        move || Ok(lock(&dataplane).helper()?)
    };
    let _helping =
        Helping::start(helper, again, Arc::clone(&board)).context("no thread for packets that wait")?;
    let gates = Arc::new(Mutex::new(gates));
    let epochs = auth.as_ref().map(|_| Epochs::open(&options.state_dir, &board));
    let files = files(options);
    // Without authentication nobody is told.
    let opened = auth.as_ref().map(|_| Store::open(&options.state_dir, &board));
    let (store, kept) = opened.unzip();
    let mut node = Node::new(Arc::clone(&loaded), board, dataplane, gates, netcfg, checks);
    node.kept = kept
        .flatten()
        .map(|kept| kept.among(&loaded.pair.owned_addresses()));
    let open = |path| Recording::open(path, options.record_limit << 20);
    let recording = options.record.as_deref().map(open).transpose()?;
    let inputs = Inputs {
        events,
        kernel: netcfg_events,
        orders: ordered,
        scripts: Scripts::new(&loaded.pair.ha, group).context("no thread for hooks")?,
    };
    let stance = stance::load(&options.state_dir);
    let outcome = node_loop::run(
        node,
        lease,
        inputs,
        (streaming, errands, flow_sync),
        recording,
        files,
        (auth, epochs, stance, store),
    )
    .await;
    beside.stop().await;
    drop(keeper);
    outcome
}

async fn load(loaded: &Loaded, auth: Option<&Authentication>) -> anyhow::Result<Dataplane> {
    let wanted = onearm_dataplane::Options {
        limits: loaded.pair.table_limits(),
        node: loaded.node.id,
        pair_key: pair_key(&loaded.pair, auth),
        tell_bytes: onearm_dataplane::Options::TELL_BYTES,
    };
    let dataplane = tokio::task::spawn_blocking(move || Dataplane::load(&wanted)).await??;
    tracing::info!(map_bytes = dataplane.map_bytes(), "maps allocated");
    Ok(dataplane)
}

/// Key of the Maglev hash, the same on both nodes: from what makes them a pair. It is no secret where the pair has none; the
/// pair's id outlives its keys.
fn pair_key(pair: &PairConfig, auth: Option<&Authentication>) -> [u64; 2] {
    let mut seed = sha2::Sha256::new_with_prefix(b"onearm maglev");
    seed.update([pair.ha.vrid]);
    if let Some(auth) = auth {
        seed.update(auth.keys.pair());
    }
    let digest = seed.finalize();
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| digest[at + i]));
    [word(0), word(8)]
}
