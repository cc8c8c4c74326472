{{/* The pods of a model: those that serve, and `worker`s that compute some of its layers for one of these. */}}
{{- define "penstock.modelPod" -}}
{{- $drain := .model.drainSeconds | default 30 -}}
{{- $preStop := 5 -}}
{{- $machines := int (.model.machines | default 1) -}}
metadata:
  labels: {{- include "penstock.labels" . | nindent 4 }}
spec:
  automountServiceAccountToken: false
  {{- with $.root.Values.image.pullSecrets }}
  imagePullSecrets: {{- range . }}
    - name: {{ . }}
  {{- end }}
  {{- end }}
  {{- with $.root.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  # Until nothing new comes, all requests have ended, and a margin.
  terminationGracePeriodSeconds: {{ add $preStop $drain 20 }}
  securityContext: {{- include "penstock.podSecurity" .root | nindent 4 }}
  {{- with include "penstock.spread" . }}
  topologySpreadConstraints: {{- . | nindent 4 }}
  {{- end }}
  {{- with merge (dict) (.model.nodeSelector | default dict) (ternary $.root.Values.spot.nodeSelector dict (.model.spot | default false)) }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with concat (.model.tolerations | default list) (ternary $.root.Values.spot.tolerations list (.model.spot | default false)) }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: model
      image: {{ include "penstock.image" .root }}
      imagePullPolicy: {{ $.root.Values.image.pullPolicy }}
      {{- $of := ternary "/model" (.model.model | default .model.name) (not (empty .model.modelImage)) }}
      args:
        {{- if .worker }}
        # LeaderWorkerSet says where the first pod is, and which one this is.
        - join
        - $(LWS_LEADER_ADDRESS):{{ include "penstock.machinesPort" . }}
        - {{ $of | quote }}
        - --machines-secret-file
        - /etc/penstock/machines/secret
        {{- with (.model.options | default dict).load_format }}
        - --load-format
        - {{ . | quote }}
        {{- end }}
        {{- else }}
        - serve
        - {{ $of | quote }}
        - --host
        - 0.0.0.0
        - --port
        - "8000"
        - --served-model-name
        - {{ .model.name | quote }}
        - --drain-timeout
        - {{ $drain | quote }}
        {{- with .model.slo }}
        - --slo
        - {{ . | quote }}
        {{- end }}
        {{- if include "penstock.keyed" .root }}
        - --api-key-file
        - /etc/penstock/keys/keys.toml
        {{- else }}
        - --no-auth
        {{- end }}
        {{- if gt $machines 1 }}
        - --machines
        - {{ $machines | quote }}
        - --machines-at
        - 0.0.0.0:{{ include "penstock.machinesPort" . }}
        - --machines-secret-file
        - /etc/penstock/machines/secret
        {{- end }}
        {{- $stages := ternary (dict "pipeline_parallel_size" $machines) dict (gt $machines 1) }}
        {{- include "penstock.options" (merge (dict) (.model.options | default dict) $stages) | nindent 8 }}
        {{- end }}
      {{- if or $.root.Values.hub.tokenSecret .model.env }}
      env:
        {{- with $.root.Values.hub.tokenSecret }}
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: {{ . }}, key: token}}
        {{- end }}
        {{- with .model.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- if not .worker }}
      ports:
        - {name: http, containerPort: 8000}
      # Three times as long as a start takes here: a first one downloads and packs weights.
      startupProbe:
        httpGet: {path: /health/ready, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ max 12 (div (add (mul 3 (int (.model.startSeconds | default 120))) 4) 5) }}
      readinessProbe:
        httpGet: {path: /health/ready, port: http}
        periodSeconds: 5
        timeoutSeconds: 5
      # Of the process: a server that is busy still answers it, and is not restarted.
      livenessProbe:
        httpGet: {path: /health/live, port: http}
        periodSeconds: 20
        timeoutSeconds: 10
        failureThreshold: 6
      lifecycle:
        preStop: {sleep: {seconds: {{ $preStop }}}}
      {{- end }}
      {{- with .model.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- include "penstock.containerSecurity" .root | nindent 8 }}
      volumeMounts:
        - {name: cache, mountPath: /var/cache/huggingface, subPath: huggingface}
        - {name: cache, mountPath: /var/cache/penstock, subPath: penstock}
        - {name: data, mountPath: /var/lib/penstock}
        - {name: tmp, mountPath: /tmp}
        {{- if gt $machines 1 }}
        - {name: machines, mountPath: /etc/penstock/machines, readOnly: true}
        {{- end }}
        {{- if and (include "penstock.keyed" .root) (not .worker) }}
        - {name: keys, mountPath: /etc/penstock/keys, readOnly: true}
        {{- end }}
        {{- if .model.modelImage }}
        - {name: model, mountPath: /model, readOnly: true}
        {{- end }}
  volumes:
    - name: cache
      {{- if or $.root.Values.cache.size $.root.Values.cache.existingClaim }}
      persistentVolumeClaim: {claimName: {{ $.root.Values.cache.existingClaim | default (printf "%s-cache" (include "penstock.name" .root)) }}}
      {{- else }}
      emptyDir: {}
      {{- end }}
    - name: data
      emptyDir: {}
    - name: tmp
      emptyDir: {}
    {{- if gt $machines 1 }}
    - name: machines
      secret:
        secretName: {{ .root.Values.machinesSecret }}
        items: [{key: secret, path: secret}]
    {{- end }}
    {{- if and (include "penstock.keyed" .root) (not .worker) }}
    - name: keys
      secret:
        secretName: {{ include "penstock.replicaKey" .root }}
        items: [{key: keys.toml, path: keys.toml}]
    {{- end }}
    {{- with .model.modelImage }}
    - name: model
      image: {reference: {{ . | quote }}, pullPolicy: IfNotPresent}
    {{- end }}
{{- end -}}

{{/* Where the first pod listens for others that compute with it. */}}
{{- define "penstock.machinesPort" -}}7400{{- end -}}
