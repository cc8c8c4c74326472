"""Chat templates in the manner of published ones, short: each has the peculiarities that conversations meet there."""

# Writes the name of any role, and has no tools.
ANY_ROLE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Qwen2.5: roles it does not know are left out; arguments are written as JSON.
QWEN25 = """{%- if tools %}
{{- '<|im_start|>system\n# Tools\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{ '<|im_end|>\n' }}
{%- elif messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou help.<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role in ('user', 'system') or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{ '\n' + message.content }}{% endif %}
        {%- for tool_call in message.tool_calls %}
            {%- set tool_call = tool_call.function %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{ '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
# Qwen3: reasoning of its own, and a content that must be text.
QWEN3 = QWEN25.replace(
    "        {%- if message.content %}{{ '\n' + message.content }}{% endif %}",
    "        {%- if '</think>' in message.content %}{% set content = message.content.split('</think>')[-1] %}"
    "{% else %}{% set content = message.content %}{% endif %}"
    "{%- if message.reasoning_content %}{{ '\n<think>' + message.reasoning_content + '</think>' }}{% endif %}"
    "{{- '\n' + content }}",
)
# Qwen3.5: the system is first, or the conversation is refused; arguments are gone through one by one.
STRICT_SYSTEM = """{%- for message in messages %}
{%- if message.role == 'system' %}
    {%- if not loop.first %}{{ raise_exception('System message must be at the beginning.') }}{% endif %}
    {{- '<|im_start|>system\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'user' %}{{ '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- elif message.role == 'assistant' %}
    {{- '<|im_start|>assistant\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '<function=' + call.function.name + '>' }}
        {%- for key, value in call.function.arguments | items %}
            {{- '<parameter=' + key + '>' }}{{ value if value is string else value | tojson }}
        {%- endfor %}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}{{ '<|im_start|>tool\n' + message.content + '<|im_end|>\n' }}
{%- else %}{{ raise_exception('Unexpected message role.') }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
# DeepSeek-R1-Distill: of several systems the last; calls only where the content is null; arguments joined as text.
R1_DISTILL = """{% set ns = namespace(system='', is_tool=false) %}
{%- for message in messages %}{% if message['role'] == 'system' %}{% set ns.system = message['content'] %}{% endif %}
{%- endfor %}{{ bos_token }}{{ ns.system }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{% set ns.is_tool = false %}{{ '<|User|>' + message['content'] }}{% endif %}
{%- if message['role'] == 'assistant' and message['content'] is none %}
    {%- for tool in message['tool_calls'] %}
        {{- '<|Assistant|><|call|>' + tool['type'] + '<|sep|>' + tool['function']['name'] + '\n```json\n' }}
        {{- tool['function']['arguments'] + '\n```<|end|>' }}
    {%- endfor %}
{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}
    {%- set content = message['content'] %}
    {%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}
    {{- '<|Assistant|>' + content + eos_token }}
{%- endif %}
{%- if message['role'] == 'tool' %}{{ '<|output|>' + message['content'] + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|Assistant|>' }}{% endif %}"""
# Llama 3.1: one call at a time, without text beside it; a date that can be told.
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = '26 Jul 2024' %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}{% set messages = messages[1:] %}
{%- else %}{% set system_message = '' %}{% endif %}
{{- '<|system|>Today: ' + date_string + '\n' + system_message + '<|eot|>' }}
{%- for message in messages %}
{%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|eot|>' }}
{%- elif 'tool_calls' in message %}
    {%- if message.tool_calls | length != 1 %}{{ raise_exception('Only single tool-calls at once!') }}{% endif %}
    {%- set tool_call = message.tool_calls[0].function %}
    {{- '<|assistant|>{"name": "' + tool_call.name + '", "parameters": ' }}
    {{- tool_call.arguments | tojson }}{{ '}<|eot|>' }}
{%- else %}
    {{- '<|ipython|>' }}
    {%- if message.content is mapping or message.content is iterable %}{{ message.content | tojson }}
    {%- else %}{{ message.content }}{% endif %}{{ '<|eot|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
# Mistral: user and assistant take turns, ids have nine characters, results name their call.
MISTRAL = """{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{{- bos_token }}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == 'tool' or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('After the optional system message, roles must alternate user/assistant') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- for message in loop_messages %}
{%- if message['role'] == 'user' %}
    {%- if loop.last and system_message is defined %}
        {{- '[INST]' + system_message + '\n\n' + message['content'] + '[/INST]' }}
    {%- else %}{{ '[INST]' + message['content'] + '[/INST]' }}{% endif %}
{%- elif message.tool_calls is defined and message.tool_calls is not none %}
    {{- '[TOOL_CALLS][' }}
    {%- for call in message.tool_calls %}
        {{- (call.function | tojson)[:-1] }}
        {%- if call.id is not defined or call.id | length != 9 %}
            {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
        {%- endif %}
        {{- ', "id": "' + call.id + '"}' }}
    {%- endfor %}{{ ']' + eos_token }}
{%- elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}
{%- elif message['role'] == 'tool' %}
    {%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 %}
        {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
    {%- endif %}
    {{- '[TOOL_RESULTS]{"name": "' + message.name + '", "content": ' + message.content + '}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported') }}
{%- endif %}
{%- endfor %}"""
# Gemma 2: no system, no tools, turns alternate.
GEMMA2 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<turn>' + role + '\n' + message['content'] | trim + '<end>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"""
# Gemma 3: the system in front of the first turn; contents may be lists of parts.
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- if messages[0]['content'] is string %}{% set first_user_prefix = messages[0]['content'] + '\n\n' %}
    {%- else %}{% set first_user_prefix = messages[0]['content'][0]['text'] + '\n\n' %}{% endif %}
    {%- set loop_messages = messages[1:] %}
{%- else %}{% set first_user_prefix = '' %}{% set loop_messages = messages %}{% endif %}
{%- for message in loop_messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<turn>' + role + '\n' + (first_user_prefix if loop.first else '') }}
{%- if message['content'] is string %}{{ message['content'] | trim }}
{%- else %}{% for item in message['content'] %}{% if item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}
{%- endfor %}{% endif %}{{ '<end>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\n' }}{% endif %}"""
# Models that see: nothing but parts.
ONLY_PARTS = """{%- for message in messages %}{{ '<|' + message['role'] + '|>' }}
{%- for part in message['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}<end>
{%- endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""
# LLaVA: of most contents nothing but the first part.
ONE_PART = """{%- for message in messages %}
{%- if message['role'] == 'system' %}{{ '<<SYS>>' + message['content'][0]['text'] + '<</SYS>>' }}
{%- elif message['role'] == 'user' %}{{ '[INST] ' }}
    {%- for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}{% endfor %}
    {{- ' [/INST]' }}
{%- elif message['role'] == 'assistant' %}{{ message['content'][0]['text'] + '</s>' }}
{%- else %}{{ raise_exception('Only user and assistant roles are supported!') }}
{%- endif %}
{%- endfor %}"""
# gpt-oss: developers, who are the system too; thoughts under another name.
DEVELOPERS = """{%- if messages[0].role in ('developer', 'system') %}
    {{- '<|start|>developer<|message|># Instructions\n' + messages[0].content + '<|end|>' }}
    {%- set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{%- for message in loop_messages %}
{%- if message.role == 'user' %}{{ '<|start|>user<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'assistant' %}
    {%- if message.thinking %}{{ '<|start|>analysis<|message|>' + message.thinking + '<|end|>' }}{% endif %}
    {%- if message.tool_calls %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant to=' + call.name + '<|message|>' }}{{ call.arguments | tojson }}{{ '<|call|>' }}
    {%- else %}{{ '<|start|>assistant<|message|>' + message.content + '<|end|>' }}{% endif %}
{%- elif message.role == 'tool' %}{{ '<|start|>' + message.name + '<|message|>' + message.content + '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""

TEMPLATES = {
    "any role": ANY_ROLE,
    "qwen2.5": QWEN25,
    "qwen3": QWEN3,
    "strict system": STRICT_SYSTEM,
    "r1-distill": R1_DISTILL,
    "llama 3.1": LLAMA31,
    "mistral": MISTRAL,
    "gemma 2": GEMMA2,
    "gemma 3": GEMMA3,
    "only parts": ONLY_PARTS,
    "one part": ONE_PART,
    "developers": DEVELOPERS,
}
