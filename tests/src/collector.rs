//! `vesta serve` under test.

use crate::binary::program;
use crate::http::{self, Response, encode};
use crate::process::Running;
use crate::{eventually, free_port};
use rustix::process::Signal;
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A running collector.
#[derive(Debug)]
pub struct Collector {
    process: Running,
    ports: Ports,
    data: Data,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    main: u16,
    grpc: u16,
    http: u16,
}

/// Where it keeps its data: its own folder, or one that outlives it.
#[derive(Debug)]
enum Data {
    Own(tempfile::TempDir),
    Given(PathBuf),
}

impl Collector {
    /// Starts on free ports with an empty data folder that ends with it.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(Data::Own(tempfile::tempdir().expect("a temporary folder")), &[])
    }

    /// Starts on free ports on the data of this folder.
    #[must_use]
    pub fn start_on(data: &Path, arguments: &[&str]) -> Self {
        Self::start_with(Data::Given(data.to_owned()), arguments)
    }

    fn start_with(data: Data, arguments: &[&str]) -> Self {
        let ports = Ports { main: free_port(), grpc: free_port(), http: free_port() };
        let folder = match &data {
            Data::Own(folder) => folder.path().to_owned(),
            Data::Given(folder) => folder.clone(),
        };
        let address = |port: u16| local(port).to_string();
        let mut command = Command::new(program("vesta"));
        command.arg("serve").arg("--data-dir").arg(&folder);
        command.args(["--listen", &address(ports.main), "--otlp-grpc", &address(ports.grpc)]);
        command.args(["--otlp-http", &address(ports.http)]).args(arguments);
        let mut collector = Self { process: Running::start(command), ports, data };
        eventually("the collector is ready", Duration::from_secs(30), || {
            let running = collector.process.is_running();
            assert!(running, "the collector ended: {}", collector.process.stderr());
            match http::get(collector.address(), "/readyz") {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(format!("readyz answers {}", answer.status)),
                Err(error) => Err(error.to_string()),
            }
        });
        collector
    }

    /// The process.
    pub fn process(&mut self) -> &mut Running {
        &mut self.process
    }

    /// Page, API, OTLP/HTTP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        local(self.ports.main)
    }

    /// OTLP/HTTP.
    #[must_use]
    pub fn otlp_http(&self) -> SocketAddr {
        local(self.ports.http)
    }

    /// OTLP/gRPC.
    #[must_use]
    pub fn otlp_grpc(&self) -> SocketAddr {
        local(self.ports.grpc)
    }

    /// Where agents send to.
    #[must_use]
    pub fn grpc_url(&self) -> String {
        format!("http://{}", self.otlp_grpc())
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        match &self.data {
            Data::Own(folder) => folder.path(),
            Data::Given(folder) => folder,
        }
    }

    /// Asks the API of the project `default`.
    ///
    /// # Panics
    /// If the answer is not 200 with JSON.
    #[must_use]
    pub fn api(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let answer = self.ask(path, query);
        assert_eq!(answer.status, 200, "{path} {query:?}: {}", answer.text());
        serde_json::from_slice(&answer.body)
            .unwrap_or_else(|error| panic!("{path}: {error}: {}", answer.text()))
    }

    /// Asks the API and gives the answer as it is.
    ///
    /// # Panics
    /// If none comes.
    #[must_use]
    pub fn ask(&self, path: &str, query: &[(&str, &str)]) -> Response {
        let pair = |(name, value): &(&str, &str)| format!("{name}={}", encode(value));
        let query: Vec<String> = query.iter().map(pair).collect();
        let path = format!("/api/v1/projects/default/{path}?{}", query.join("&"));
        http::get(self.address(), &path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// One value of the collector's own metrics, summed over its labels; 0 if it is not there.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        let answer = http::get(self.address(), "/metrics").expect("metrics");
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let value = rest
                .strip_prefix(' ')
                .or_else(|| rest.strip_prefix('{')?.split_once("} ").map(|(_, v)| v))?;
            value.split(' ').next()?.parse::<f64>().ok()
        };
        answer.text().lines().filter_map(value).sum()
    }

    /// Kills it without warning.
    pub fn kill(&mut self) {
        self.process.signal(Signal::KILL);
        self.process.wait(Duration::from_secs(10));
    }

    /// Ends it as Ctrl-C does.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn stop(mut self) -> String {
        self.process.signal(Signal::INT);
        let status = self.process.wait(Duration::from_secs(20));
        let said = self.process.stderr();
        assert!(status.success(), "the collector ended with {status}:\n{said}");
        said
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}
