//! What the commands need and how it is had: tools that are on the machine are taken, the others go into
//! the cache folder (or, as root, come from the distribution). Each function is silent when there is
//! nothing to do, and an error says what is missing and what a person can do about it.

mod bpf;
mod collector;
mod debian;
mod go;
mod npm;
mod private_apt;
mod python;

pub(crate) use bpf::bpf_tools;
pub(crate) use collector::opentelemetry_collector;
pub(crate) use debian::{newest_program, program};
pub(crate) use go::go;
pub(crate) use npm::npm_packages;
pub(crate) use private_apt::{PackageVersion, PrivateApt};
pub(crate) use python::{chdb, python};
