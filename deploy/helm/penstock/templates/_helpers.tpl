{{- define "penstock.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* A model's name as a part of Kubernetes' names. */}}
{{- define "penstock.slug" -}}
{{- regexReplaceAll "[^a-z0-9]+" (lower .) "-" | trimAll "-" | trunc 20 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.of" -}}
{{ include "penstock.name" .root }}-{{ include "penstock.slug" .model.name }}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: penstock
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "penstock.labels" -}}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "penstock.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Options of a command, by their names, as a list of arguments. */}}
{{- define "penstock.options" -}}
{{- range $name, $value := . }}
{{- $option := printf "--%s" (replace "_" "-" $name) }}
{{- if kindIs "bool" $value }}
- {{ ternary $option (printf "--no-%s" (replace "_" "-" $name)) $value }}
{{- else if kindIs "slice" $value }}
{{- range $value }}
- {{ $option }}
- {{ toString . | quote }}
{{- end }}
{{- else if kindIs "float64" $value }}
- {{ $option }}
- {{ (eq (floor $value) $value) | ternary (printf "%.0f" $value) (toString $value) | quote }}
{{- else }}
- {{ $option }}
- {{ toString $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.least" -}}
{{- if kindIs "map" .replicas }}{{ .replicas.least }}{{ else }}{{ .replicas | default 1 }}{{ end -}}
{{- end -}}

{{- define "penstock.most" -}}
{{- if kindIs "map" .replicas }}{{ .replicas.most }}{{ else }}{{ .replicas | default 1 }}{{ end -}}
{{- end -}}

{{/* Whether a model's number of replicas is left to something else than this chart. */}}
{{- define "penstock.scales" -}}
{{- if and (kindIs "map" .model.replicas) (ne .root.Values.scaling.by "none") }}yes{{ end -}}
{{- end -}}

{{/* The version and kind of what runs a model's replicas. */}}
{{- define "penstock.workload" -}}
{{- if gt (int (.machines | default 1)) 1 }}leaderworkerset.x-k8s.io/v1 LeaderWorkerSet{{ else }}apps/v1 Deployment{{ end -}}
{{- end -}}

{{/* Whether replicas have a key that only gateways show. */}}
{{- define "penstock.keyed" -}}
{{- if not .Values.inferencePool.enabled }}yes{{ end -}}
{{- end -}}

{{- define "penstock.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "penstock.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "penstock.spread" -}}
{{- range .root.Values.spread }}
- topologyKey: {{ . }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "penstock.selector" $ | nindent 6 }}
{{- end }}
{{- end -}}

{{/* The secret with what gateways show replicas. */}}
{{- define "penstock.replicaKey" -}}
{{- .Values.replicaKeySecret | default (printf "%s-replicas" (include "penstock.name" .)) -}}
{{- end -}}

{{/* What would not run, in one sentence each. */}}
{{- define "penstock.check" -}}
{{- $seen := dict -}}
{{- range .Values.models -}}
{{- $slug := include "penstock.slug" .name -}}
{{- if or (eq $slug "gateway") (eq $slug "gateway-picker") -}}
{{- fail (printf "A model is called %s, as the gateway is in names of Kubernetes; give it another name." .name) -}}
{{- end -}}
{{- if and .modelImage (semverCompare "<1.31.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "%s has modelImage, and volumes from images need Kubernetes 1.31 with the feature ImageVolume; this is %s." .name $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if and (gt (int (.machines | default 1)) 1) (not $.Values.machinesSecret) -}}
{{- fail (printf "%s is on several machines, which have to have a secret in common; create one with the key `secret` and name it in machinesSecret." .name) -}}
{{- end -}}
{{- if hasKey $seen $slug -}}
{{- fail (printf "Two models are called %s in names of Kubernetes; give one of them a name that differs in letters or digits." $slug) -}}
{{- end -}}
{{- $_ := set $seen $slug true -}}
{{- if kindIs "map" .replicas -}}
{{- if gt (int .replicas.least) (int .replicas.most) -}}
{{- fail (printf "%s has from %d to %d replicas; write the smaller number first." .name (int .replicas.least) (int .replicas.most)) -}}
{{- end -}}
{{- if eq $.Values.scaling.by "none" -}}
{{- fail (printf "%s has bounds of its number of replicas; say by what it follows the load (scaling.by: keda or hpa), or write one number." .name) -}}
{{- end -}}
{{- $model := . -}}
{{- range $hours, $number := .replicas.hours -}}
{{- $ends := splitList "-" $hours -}}
{{- if eq (index $ends 0 | atoi) (mod (index $ends 1 | atoi) 24 | int) -}}
{{- fail (printf "%s has a number of replicas for the whole day (%s); write it as replicas.least." $model.name $hours) -}}
{{- end -}}
{{- if or (lt (int $number) (int $model.replicas.least)) (gt (int $number) (int $model.replicas.most)) -}}
{{- fail (printf "%s has %d replicas at least from %s o'clock, and %d to %d at any time; write a number between these." $model.name (int $number) $hours (int $model.replicas.least) (int $model.replicas.most)) -}}
{{- end -}}
{{- end -}}
{{- if and (eq $.Values.scaling.by "hpa") .replicas.hours -}}
{{- fail (printf "%s has numbers of replicas by the hour, which need scaling.by: keda." .name) -}}
{{- end -}}
{{- if and (eq $.Values.scaling.by "hpa") (eq (int .replicas.least) 0) -}}
{{- fail (printf "%s may have no replica, which needs scaling.by: keda; a HorizontalPodAutoscaler keeps one." .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled .Values.networkPolicy.enabled (not .Values.networkPolicy.alsoFrom) -}}
{{- fail "With inferencePool.enabled an Envoy passes requests on to replicas; name it in networkPolicy.alsoFrom, or leave networkPolicy.enabled out." -}}
{{- end -}}
{{- if and .Values.inferencePool.enabled .Values.httpRoute.enabled (gt (len .Values.models) 1) -}}
{{- fail "An HTTPRoute does not see which model a body names; with inferencePool.enabled leave httpRoute.enabled out and write a route for each model, or have one release for each." -}}
{{- end -}}
{{- with .Values.gateway -}}
{{- $ways := len (compact (list .keysSecret .databaseSecret (ternary "no" "" .noAuth))) -}}
{{- if and (gt $ways 1) -}}
{{- fail "gateway.keysSecret, gateway.databaseSecret and gateway.noAuth exclude one another; leave one of them." -}}
{{- end -}}
{{- if eq $ways 0 -}}
{{- fail "Nothing says who may ask: set gateway.keysSecret, gateway.databaseSecret, or gateway.noAuth." -}}
{{- end -}}
{{- if and .databaseSecret $.Values.monitoring.serviceMonitors (not $.Values.monitoring.keySecret) -}}
{{- fail "Gateways with a database tell metrics to keys only; give Prometheus one in monitoring.keySecret." -}}
{{- end -}}
{{- if and $.Values.inferencePool.enabled (gt (len (compact (list .keysSecret .databaseSecret))) 0) -}}
{{- fail "With inferencePool.enabled requests go past the gateway, which could not look at keys; leave gateway.keysSecret and gateway.databaseSecret out." -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The gateway's file: a replica behind each address of each model's service. */}}
{{- define "penstock.gatewayFile" -}}
{{- $replicas := list -}}
{{- $expected := list -}}
{{- range .Values.models -}}
{{- $host := printf "%s.%s.svc" (include "penstock.of" (dict "root" $ "model" .)) $.Release.Namespace -}}
{{- $replicas = append $replicas (dict "url" (printf "http://%s:8000" $host) "dns" true) -}}
{{- $expected = append $expected .name -}}
{{- end -}}
{{- $own := dict "replica" $replicas "expect" $expected -}}
{{- if include "penstock.keyed" . -}}
{{- $_ := set $own "key_variable" "PENSTOCK_REPLICA_KEY" -}}
{{- end -}}
{{- toPrettyJson (merge (dict) $own .Values.gateway.file) -}}
{{- end -}}
