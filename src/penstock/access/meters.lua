-- What penstock.metering.meters.Meters does, for meters that several gateways share: one step, which no other comes
-- between. A meter is a hash: `u` is what is used in all, `s<number>` what was used in a slot, `g<gateway>` what is under
-- way at a gateway; no slot is older than `o`. Of a total, `l` is the part that the ledger says and no gateway has told. A
-- second hash has the same of one gateway's part, so that it can say again what it has used after it was away, or after
-- the store has lost it.
--
-- KEYS: of each meter both hashes. ARGV: the verb, and what is said at its function.

local SLOTS = 120

local function now()
    local time = redis.call('TIME')
    return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

-- As the store reads integers: it takes no -0.
local function whole(number)
    return string.format('%.0f', number + 0)
end

local function used_of(key)
    return tonumber(redis.call('HGET', key, 'u') or '0')
end

-- Forgets slots that are too old, and returns what is used of the others.
local function look(key, slot)
    local oldest = slot - SLOTS
    local from = tonumber(redis.call('HGET', key, 'o') or whole(oldest))
    if from + SLOTS < oldest then
        redis.call('DEL', key)
        return 0
    end
    for each = from, oldest - 1 do
        local field = 's' .. whole(each)
        local amount = redis.call('HGET', key, field)
        if amount then
            redis.call('HDEL', key, field)
            redis.call('HINCRBY', key, 'u', whole(-tonumber(amount)))
        end
    end
    if from < oldest then
        redis.call('HSET', key, 'o', whole(oldest))
    end
    return used_of(key)
end

-- Seconds until `amount` fits, as text; 'inf' where it never does.
local function wait(key, slot, moment, seconds, amount, most)
    local left = used_of(key) + amount - most
    for each = slot - SLOTS, slot do
        left = left - tonumber(redis.call('HGET', key, 's' .. whole(each)) or '0')
        if left <= 0 then
            return string.format('%.6f', (each + SLOTS + 1) * seconds / SLOTS - moment)
        end
    end
    return 'inf'
end

-- What gateways that are there have under way. Others may be there, too, and not be known yet.
local function running(key, gateways)
    local used = 0
    for gateway in pairs(gateways) do
        used = used + tonumber(redis.call('HGET', key, 'g' .. gateway) or '0')
    end
    return used
end

local function add_to_slot(hash, slot, amount)
    local from = redis.call('HGET', hash, 'o')
    if not from or slot < tonumber(from) then
        redis.call('HSET', hash, 'o', whole(slot))
    end
    redis.call('HINCRBY', hash, 's' .. whole(slot), whole(amount))
    redis.call('HINCRBY', hash, 'u', whole(amount))
end

-- Uses more of a meter, or less, at a moment; `seconds` are a window's, or those after which the meter is forgotten.
local function use(meter, own, kind, seconds, slot, current, amount)
    local kept = seconds
    if kind == 'running' then
        redis.call('HINCRBY', meter.whole, 'g' .. own, whole(amount))
    else
        for _, hash in ipairs({ meter.whole, meter.own }) do
            if kind == 'total' then
                redis.call('HINCRBY', hash, 'u', whole(amount))
            else
                look(hash, current)
                if slot >= current - SLOTS then
                    add_to_slot(hash, slot, amount)
                end
                kept = 2 * seconds
            end
            redis.call('PEXPIRE', hash, whole(1000 * kept))
        end
    end
    redis.call('PEXPIRE', meter.whole, whole(1000 * kept))
end

local function meters_of(keys)
    local meters = {}
    for place = 1, #keys, 2 do
        meters[#meters + 1] = { whole = keys[place], own = keys[place + 1] }
    end
    return meters
end

-- The gateways whose requests under way count: the one that asks, and those that it names. args as in `reserve`.
local function there(args)
    local gateways = { [args[1]] = true }
    for place = 3, 2 + tonumber(args[2]) do
        gateways[args[place]] = true
    end
    return gateways
end

-- What counts of a meter of this kind, in this slot of its window.
local function used_now(meter, kind, slot, gateways)
    if kind == 'window' then
        return look(meter.whole, slot)
    elseif kind == 'running' then
        return running(meter.whole, gateways)
    end
    return used_of(meter.whole)
end

-- args: the gateway that asks, how many gateways there are, their names; then of each meter: its kind and seconds.
-- Returns what is used of each.
local function look_at(meters, args)
    local moment, gateways, first, answer = now(), there(args), 2 + tonumber(args[2]), {}
    for number, meter in ipairs(meters) do
        local kind, seconds = args[first + 2 * number - 1], tonumber(args[first + 2 * number])
        answer[number] = used_now(meter, kind, math.floor(moment * SLOTS / seconds), gateways)
    end
    return answer
end

-- args: the gateway that asks, how many gateways there are, their names; then of each meter: "window", "total" or
-- "running", its seconds, the most, the amount.
-- Returns {moment, 0, used of each} where all is reserved, else {moment, which (from 1), used of it, seconds}.
local function reserve(meters, args)
    local moment, own, count, gateways = now(), args[1], tonumber(args[2]), there(args)
    local asked, refused = {}, nil
    for number, meter in ipairs(meters) do
        local first = 2 + count + 4 * (number - 1)
        local each = { kind = args[first + 1], seconds = tonumber(args[first + 2]), amount = tonumber(args[first + 4]) }
        local most = tonumber(args[first + 3])
        each.slot = math.floor(moment * SLOTS / each.seconds)
        each.used = used_now(meter, each.kind, each.slot, gateways)
        asked[number] = each
        if each.used + each.amount > most then
            local told = 'inf'
            if each.kind == 'window' then
                told = wait(meter.whole, each.slot, moment, each.seconds, each.amount, most)
            end
            local seconds = tonumber(told) or math.huge
            if not refused or seconds > refused.seconds then
                refused = { number = number, used = each.used, told = told, seconds = seconds }
            end
        end
    end
    local answer = { string.format('%.6f', moment), 0 }
    if refused then
        return { answer[1], refused.number, refused.used, refused.told }
    end
    for number, meter in ipairs(meters) do
        local each = asked[number]
        use(meter, own, each.kind, each.seconds, each.slot, each.slot, each.amount)
        answer[#answer + 1] = each.used + each.amount
    end
    return answer
end

-- args: the gateway, a moment; then of each meter: its kind, seconds, and what more was used at that moment.
local function add(meters, args)
    local own, current, at = args[1], now(), tonumber(args[2])
    for number, meter in ipairs(meters) do
        local first = 2 + 3 * (number - 1)
        local kind, seconds, amount = args[first + 1], tonumber(args[first + 2]), tonumber(args[first + 3])
        local function slot(moment)
            return math.floor(moment * SLOTS / seconds)
        end
        use(meter, own, kind, seconds, slot(at), slot(current), amount)
    end
end

-- What a gateway has used in all, whatever the store has of it. args: the gateway; then of each meter: its kind, seconds,
-- how many slots follow, and of each its number and what was used in it; of a total, and of what is under way, slot 0.
local function tell(meters, args)
    local own, moment, place = args[1], now(), 2
    for _, meter in ipairs(meters) do
        local kind, seconds, count = args[place], tonumber(args[place + 1]), tonumber(args[place + 2])
        local current = math.floor(moment * SLOTS / seconds)
        if kind == 'window' then
            look(meter.own, current)
        end
        for pair = 1, count do
            local slot, used = tonumber(args[place + 1 + 2 * pair]), tonumber(args[place + 2 + 2 * pair])
            local hash, field = meter.own, 's' .. whole(slot)
            if kind == 'running' then
                hash, field = meter.whole, 'g' .. own
            elseif kind == 'total' then
                field = 'u'
            end
            local known = tonumber(redis.call('HGET', hash, field) or '0')
            if known ~= used then
                use(meter, own, kind, seconds, slot, current, used - known)
            end
            if kind == 'total' and used > known then
                -- A gateway that was cut off tells late what the ledger has known before.
                local twice = math.min(used - known, tonumber(redis.call('HGET', meter.whole, 'l') or '0'))
                redis.call('HINCRBY', meter.whole, 'l', whole(-twice))
                redis.call('HINCRBY', meter.whole, 'u', whole(-twice))
            end
        end
        place = place + 3 + 2 * count
    end
end

-- What is used of a total, where less is counted. args: the gateway, seconds after which it is forgotten, how much.
local function at_least(meters, args)
    local meter, seconds = meters[1], tonumber(args[2])
    local more = tonumber(args[3]) - used_of(meter.whole)
    if more > 0 then
        redis.call('HINCRBY', meter.whole, 'u', whole(more))
        redis.call('HINCRBY', meter.whole, 'l', whole(more))
        redis.call('PEXPIRE', meter.whole, whole(1000 * seconds))
    end
end

local verbs = { add = add, at_least = at_least, look = look_at, reserve = reserve, tell = tell }
return verbs[table.remove(ARGV, 1)](meters_of(KEYS), ARGV)
