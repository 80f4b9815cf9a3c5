//! The Helm chart, rendered for each of its `ci/*-values.yaml`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tollgate_testkit::of_the_tools;

use super::{config_must_pass, deploy, files, python, read, rule_files, run, try_run};

/// The Kubernetes whose schemas manifests are checked with.
const KUBERNETES: &str = "1.33";

/// What needs the Prometheus operator, whose schemas are not Kubernetes' own.
const FOREIGN_KINDS: [&str; 3] = ["ServiceMonitor", "PodMonitor", "PrometheusRule"];

fn helm(command: &str) -> Command {
    let mut helm = Command::new(of_the_tools("helm/helm"));
    let home = std::env::temp_dir();
    helm.env("HELM_CACHE_HOME", &home).env("HELM_CONFIG_HOME", &home).env("HELM_DATA_HOME", &home);
    helm.arg(command);
    helm
}

/// The chart as rendered for values.
fn render(values: &[&str]) -> Command {
    let mut command = helm("template");
    command.arg("release").arg(deploy("helm/tollgate"));
    for value in values {
        command.args(["--set", value]);
    }
    command
}

fn all_values() -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(&deploy("helm/tollgate/ci"), "yaml", &mut found);
    assert!(found.len() >= 5, "only {} sets of values", found.len());
    found
}

/// A text within a `ConfigMap`: the lines after its name that are indented by four.
fn text_of(manifests: &str, name: &str) -> Option<String> {
    let start = format!("\n  {name}: |\n");
    let rest = &manifests[manifests.find(&start)? + start.len()..];
    let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    Some(lines.map(|line| line.get(4..).unwrap_or_default().to_owned() + "\n").collect())
}

#[test]
fn the_chart_is_rendered_for_every_pattern() {
    for values in all_values() {
        run(helm("lint").arg("--strict").arg(deploy("helm/tollgate")).arg("--values").arg(&values));
        let manifests = run(render(&[]).arg("--values").arg(&values));
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("manifests.yaml");
        fs::write(&path, &manifests).expect("the manifests");
        let mut validate = python("kubernetes-validate", "kubernetes_validate");
        let said = run(validate.args(["--strict", "--kubernetes-version", KUBERNETES]).arg(&path));
        for line in said.lines().filter(|line| line.starts_with("WARN")) {
            let is_foreign = FOREIGN_KINDS.iter().any(|kind| line.contains(kind));
            assert!(is_foreign, "{}: {line}", values.display());
        }
        assert!(said.contains("INFO"), "nothing was looked at: {said}");

        let config = text_of(&manifests, "tollgate.yaml").expect("a configuration");
        let rules = dir.path().join("rules.yaml");
        let config = config.replace("/etc/tollgate/rules/rules.yaml", &rules.display().to_string());
        if let Some(text) = text_of(&manifests, "rules.yaml") {
            fs::write(&rules, text).expect("the rules");
            let mut validate = Command::new(tollgate_e2e::server::binary());
            run(validate.args(["rules", "validate"]).arg(&rules));
        }
        config_must_pass(&config, "/run/secrets/tollgate", &[]);
    }
}

#[test]
fn the_two_patterns_differ_where_they_must() {
    let pattern = |name: &str| {
        let values = deploy("helm/tollgate/ci").join(format!("{name}-values.yaml"));
        run(render(&[]).arg("--values").arg(values))
    };
    let central = pattern("central");
    for kind in
        ["HorizontalPodAutoscaler", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"]
    {
        assert!(central.contains(&format!("\nkind: {kind}\n")), "{kind}");
    }
    assert!(central.contains("path: /readyz") && central.contains("path: /healthz"));
    assert!(!central.contains("initContainers:"));
    assert!(central.contains("terminationGracePeriodSeconds: 25\n"), "5 + 10 + 10");

    // Nothing but the ports that are meant for others is open to them.
    let gateway = pattern("gateway");
    assert!(gateway.contains("\nkind: NetworkPolicy\n"), "without being asked for");
    assert!(gateway.contains("- ports:\n        - {port: 8000, protocol: TCP}\n"), "{gateway}");
    assert!(pattern("file").contains("\n    - from:\n        - podSelector: {}\n"));

    // A sidecar is an init container that stays.
    let sidecar = pattern("sidecar");
    assert!(sidecar.contains("\nkind: NetworkPolicy\n"));
    assert!(!pattern("loopback").contains("\nkind: NetworkPolicy\n"));
    assert!(sidecar.contains("initContainers:") && sidecar.contains("restartPolicy: Always"));
    assert!(sidecar.contains("- name: envoy\n") || sidecar.contains("name: envoy\n"));
    assert!(sidecar.contains("role: data\n") && sidecar.contains("\nkind: PodMonitor\n"));

    // Nobody but its pod reaches this one: it asks itself whether it is well, and needs no token.
    let loopback = pattern("loopback");
    assert!(loopback.contains("http: 127.0.0.1:8080") && !loopback.contains("httpGet"));
    assert!(!loopback.contains("data_auth"));
}

#[test]
fn probes_and_monitors_follow_tls() {
    let pattern = |name: &str| {
        let values = deploy("helm/tollgate/ci").join(format!("{name}-values.yaml"));
        run(render(&[]).arg("--values").arg(values))
    };
    let plain = pattern("central");
    assert!(plain.contains("port: http, scheme: HTTP}") && !plain.contains("scheme: https"));

    // The kubelet asks by HTTPS, and Prometheus verifies the certificate.
    let tls = pattern("tls");
    assert_eq!(tls.matches("port: http, scheme: HTTPS}").count(), 3, "{tls}");
    assert!(tls.contains("scheme: https\n") && tls.contains("key: ca.crt"));
    assert!(tls.contains("serverName: release-tollgate.default.svc"));
    assert!(tls.contains("cert_file: /run/tls/listener/tls.crt"));
    assert!(tls.contains("client_ca_file: /run/tls/client-ca/ca.crt"));
    assert!(tls.contains("secretName: callers-ca") && tls.contains("secretName: tollgate-tls"));
    assert!(tls.contains("--url=https://release-tollgate.default.svc:8080"));

    // It has no certificate to show, so the binary asks itself.
    let mutual = pattern("mtls");
    assert!(!mutual.contains("httpGet"));
    assert_eq!(mutual.matches("exec: {command: [/usr/local/bin/tollgate, health").count(), 3);
    assert!(mutual.contains("keySecret:") && mutual.contains("name: tollgate-client"));
    assert!(mutual.contains("mountPath: /run/tls/postgres"));

    // TLS that only `config` speaks of counts as well.
    let own = ["dataAuth=none", "config.tls.cert_file=/c", "config.tls.key_file=/k"];
    assert!(run(&mut render(&own)).contains("port: http, scheme: HTTPS}"));
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let cases = [
        (&["dataAuth=token"][..], "set secrets.dataTokens"),
        (&["dataAuth=nobody"], "dataAuth"),
        (&["dataAuth=none", "typo=1"], "typo"),
        (&["dataAuth=none", "mode=sidecar"], "sidecar.containers"),
        (&["mode=sidecar", "sidecar.loopback=true", "monitor.enabled=true"], "loopback"),
        (&["dataAuth=none", "secrets.apiKeySecret=short"], "apiKeySecret"),
        (&["dataAuth=none", "tls.clientCertificates=required"], "tls.secretName"),
        (&["dataAuth=mtls"], "tls.clientCertificates"),
        (
            &["dataAuth=none", "redis.urls={rediss://r}", "redis.tls.clientCertificate=true"],
            "redis.tls.secretName",
        ),
    ];
    for (values, complaint) in cases {
        let (is_content, said) = try_run(&mut render(values));
        assert!(!is_content && said.contains(complaint), "{values:?}: {said}");
    }
}

/// A chart of someone else, whose pods have Tollgate in them.
const PARENT: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: edge}
spec:
  selector: {matchLabels: {app: edge}}
  template:
    metadata: {labels: {app: edge}}
    spec:
      enableServiceLinks: false
      securityContext: {fsGroup: 65532}
      initContainers:
        {{- include "tollgate.sidecarContainer" .Subcharts.tollgate | nindent 8 }}
      containers: [{name: nginx, image: "nginx:1.27"}]
      volumes:
        {{- include "tollgate.volumes" .Subcharts.tollgate | nindent 8 }}
"#;

#[test]
fn another_chart_can_include_the_sidecar() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file of the chart");
    };
    let dependencies = "dependencies: [{name: tollgate, version: 0.1.0}]\n";
    write("Chart.yaml", &format!("apiVersion: v2\nname: edge\nversion: 0.1.0\n{dependencies}"));
    write(
        "values.yaml",
        "tollgate: {mode: library, secrets: {dataTokens: [a-token-of-the-tests]}}\n",
    );
    write("templates/deployment.yaml", PARENT);
    fs::create_dir(dir.path().join("charts")).expect("a folder");
    let to = dir.path().join("charts/tollgate");
    run(Command::new("cp").arg("-r").arg(deploy("helm/tollgate")).arg(to));

    let manifests = run(helm("template").arg("release").arg(dir.path()));
    let mut kinds: Vec<&str> =
        manifests.lines().filter_map(|it| it.strip_prefix("kind: ")).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["ConfigMap", "Deployment", "Secret"], "nothing but what the pods need");
    let path = dir.path().join("manifests.yaml");
    fs::write(&path, manifests).expect("the manifests");
    let mut validate = python("kubernetes-validate", "kubernetes_validate");
    run(validate.args(["--strict", "--kubernetes-version", KUBERNETES]).arg(&path));
}

/// A chart can only use files within it, so it has copies.
#[test]
fn the_copies_in_the_chart_are_true() {
    let originals = rule_files().into_iter().chain([deploy("grafana/tollgate.json")]);
    for original in originals {
        let name = original.file_name().expect("a name");
        let copy = deploy("helm/tollgate/files").join(name);
        assert!(read(&copy) == read(&original), "{} is another one", copy.display());
    }

    let mut command = render(&["dataAuth=none", "prometheusRule.enabled=true"]);
    let manifest = run(command.args(["--show-only", "templates/monitoring.yaml"]));
    let (_, spec) = manifest.split_once("\nspec:\n").expect("a specification");
    let rules: String =
        spec.lines().map(|line| line.get(2..).unwrap_or_default().to_owned() + "\n").collect();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("rules.yaml");
    fs::write(&path, rules).expect("the rules");
    let said = run(Command::new("promtool").args(["check", "rules"]).arg(path));
    let count: usize = rule_files()
        .iter()
        .map(|path| {
            let text = read(path);
            text.matches("- alert: ").count() + text.matches("- record: ").count()
        })
        .sum();
    assert!(said.contains(&format!("{count} rules found")), "{said}");
}
